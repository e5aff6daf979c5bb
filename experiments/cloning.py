"""Units of behaviour cloning (section 5.3): runs of the algorithm `bc`.

Each lane imitates its expert: squared error to the actions in a fixed set of transitions from
noise-free episodes, without rewards or a critic. Steps count gradient updates.
"""

import dataclasses
from collections.abc import Sequence

from rlx2_jax.config import Lane
from rlx2_jax.options import NEVER
from rlx2_jax.training.settings import Settings

SHARE = 10  # factor by which imitation needs fewer updates than reinforcement learning


def imitating(
    settings: Settings, lanes: Sequence[Lane], transitions: int
) -> tuple[Settings, list[Lane]]:
    """Settings and lanes for imitation, derived from those of reinforcement learning."""
    updates = max(settings.steps // SHARE, 2)
    names = ("eval_interval", "metrics_interval", "checkpoint_interval")
    intervals = {x: max(1, updates * getattr(settings, x) // settings.steps) for x in names}
    own = ("policy_delay", "target_interval")  # of TD3
    choices = {k: v for k, v in settings.choices.items() if k not in own}
    settings = dataclasses.replace(
        settings,
        algo="bc",
        steps=updates,
        num_envs=1,
        utd=1.0,
        capacity=transitions,
        choices=choices,
        **intervals,
    )
    fixed = {"n": 1, "trim_ratio": 0.0, "buffer_interval": NEVER, "b_min": None, "b_max": None}
    return settings, [dataclasses.replace(lane, **fixed) for lane in lanes]
