"""The configuration of a run: a static `Config`, and per lane a `Lane` and its traced `Hyper`.

`Config` determines shapes and code paths; there is one compiled program per Config. `Hyper` is a
pytree of scalars, so lanes with different methods, rates, thresholds and seeds share a program.
Defaults are the paper's (appendix C.2); `PRESETS` hold the choices where its text and its authors'
code differ.
"""

from rlx2_jax.config.hyper import Hyper, hyper
from rlx2_jax.config.links import dense_lane, lane_links, live_links, network_lane, widths
from rlx2_jax.config.records import Config, Lane, Links
from rlx2_jax.config.resolve import (
    PRESETS,
    lane_preset,
    make,
    preset,
    resolve,
    setting,
    shared_interval,
    topology_of,
    with_topology,
)
from rlx2_jax.option_table import ALGORITHMS, METHODS

__all__ = [
    "ALGORITHMS",
    "METHODS",
    "PRESETS",
    "Config",
    "Hyper",
    "Lane",
    "Links",
    "dense_lane",
    "hyper",
    "lane_links",
    "lane_preset",
    "live_links",
    "make",
    "network_lane",
    "preset",
    "resolve",
    "setting",
    "shared_interval",
    "topology_of",
    "widths",
    "with_topology",
]
