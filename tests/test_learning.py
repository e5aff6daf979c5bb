"""InvertedPendulum-v5 is solved (return 1000): dense TD3, SAC and DroQ, RLx2-TD3 at 90/85 %."""

from typing import Any

import pytest

from rlx2_jax import config, envs
from rlx2_jax.training.host_loop import HostLoop

pytestmark = pytest.mark.slow

SHARED = {"seed": 0, "discount": 0.97, "tau": 0.01}
LANES = {
    "td3": [
        config.Lane(method="dense", learning_rate=3e-3, exploration_noise=0.1, **SHARED),
        config.Lane(
            method="rlx2",
            learning_rate=1e-3,
            exploration_noise=0.2,
            actor_sparsity=0.9,
            critic_sparsity=0.85,
            t0=2000,
            b_min=1000,
            d0=0.05,
            **SHARED,
        ),
    ],
    "sac": [config.Lane(method="dense", learning_rate=1e-3, **SHARED)],
    "droq": [config.Lane(method="dense", learning_rate=1e-3, **SHARED)],
}
# DroQ makes ten updates of its critics per step, and learns in fewer steps.
BUDGETS: dict[str, dict[str, Any]] = {
    "td3": {"steps": 20_000, "warmup": 1000},
    "sac": {"steps": 20_000, "warmup": 1000},
    "droq": {"steps": 6000, "warmup": 500, "updates_per_step": 10, "policy_delay": 10},
}


@pytest.mark.parametrize("algo", LANES)
def test_inverted_pendulum_is_solved(algo):
    cfg = config.make(
        algo,
        4,
        1,
        hidden=(64, 64),
        batch_size=64,
        oldest_k=512,
        capacity=20_000,
        mask_interval=200,
        buffer_interval=500,
        **BUDGETS[algo],
    )
    lanes = LANES[algo]
    loop = HostLoop(cfg, lanes, lambda n: envs.make_host("InvertedPendulum-v5", n))
    best = [0.0] * len(lanes)
    while min(best) < 1000 and loop.time < cfg.steps:
        loop.advance(loop.time + 500, lambda: False)
        returns = loop.evaluate().returns.mean(axis=1)
        best = [max(a, b) for a, b in zip(best, returns.tolist())]
    assert best == [1000.0] * len(lanes)
    report = loop.report()
    if algo == "td3":
        assert report[0]["critic_evolutions"] == 0
        assert report[1]["critic_evolutions"] > 10 and report[1]["trims"] >= 3
        assert report[1]["n"] == 3
