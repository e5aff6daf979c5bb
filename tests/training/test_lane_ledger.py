"""The ledger of a lane, against hand-computed numbers for its layers and schedule."""

import math
from itertools import pairwise
from typing import Any

import pytest

from experiments.paper.ledger import METHODS
from experiments.paper.ledger import ledger as paper_ledger
from rlx2_jax import config
from rlx2_jax.config import Config, Lane
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.accounting import Iteration, Ledger, Networks, ledger, overall_sparsity
from rlx2_jax.training.lane_ledger import lane_ledger

pytestmark = pytest.mark.fast


def hopper(algo: str = "td3", **fields: Any) -> Config:
    return config.make(algo, 11, 3, **fields)


def small(**fields: Any) -> Config:
    """2-4-1 and 3-4-1, batches of 2, K = 16."""
    sizes = {"hidden": (4,), "batch_size": 2, "oldest_k": 16, "mask_interval": 10}
    sizes |= {"buffer_interval": 5, "steps": 1000, "warmup": 100, "capacity": 200}
    return config.make("td3", 2, 1, **sizes | fields)


def of_small(cfg: Config | None = None, **fields: Any) -> Ledger:
    half = {"actor_sparsity": 0.5, "critic_sparsity": 0.5, "distribution": "uniform", "b_min": 50}
    return lane_ledger(cfg or small(), Lane(**half | fields))


def test_layers_of_different_sparsity_are_weighted_by_their_size():
    lane = Lane(actor_sparsity=(0.0, 0.99, 0.0), critic_sparsity=(0.5, 0.9, 0.0))
    run = lane_ledger(hopper(), lane)
    actor, critic = (11 * 256, 655.36, 3 * 256), (7 * 256, 6553.6, 256)
    assert run.actor_parameters == pytest.approx(sum(actor))
    assert round(run.actor_parameters) == 4239
    assert run.critic_parameters == pytest.approx(sum(critic))
    assert run.total_parameters == pytest.approx(2 * sum(actor) + 4 * sum(critic))
    links = config.lane_links(hopper(), lane)
    assert abs(sum(links.actor) - run.actor_parameters) < 1  # whole links, one layer rounded
    assert abs(sum(links.critic) - run.critic_parameters) < 1
    a = 21 * 256 + 655.36 * 511 / 256 + 511 * 3
    assert run.inference_flops == pytest.approx(a, rel=1e-12)
    dense = 11 * 256 + 256 * 256 + 3 * 256
    evolution = 256 * 2 * a / (sum(actor) / dense) / 10_000  # B 2 A / ((1 - S_a) Δ_m)
    assert run.actor_evolution_flops == pytest.approx(evolution, rel=1e-12)
    assert run.relative.actor_parameters == pytest.approx(sum(actor) / dense)


def test_a_small_lane_by_hand():
    # As in test_accounting: A = 9.5 and C = 13.5, 6 of 12 and 8 of 16 links.
    run, a, c = of_small(), 9.5, 13.5
    assert (run.actor_parameters, run.critic_parameters) == (6, 8)
    assert run.critic_update_flops == 2 * (a + 8 * c)
    assert run.actor_update_flops == 2 * (3 * a + c) / 2
    assert run.actor_evolution_flops == pytest.approx(2 * 2 * a / 0.5 / 10)
    assert run.critic_evolution_flops == pytest.approx(2 * 4 * c / 0.5 / 10)
    assert run.trim_flops == pytest.approx(16 * a / 5)
    assert run.train_flops == pytest.approx(336.6)


def test_masks_that_never_change_cost_nothing():
    for static in (
        of_small(zeta0=0.0),
        of_small(method="rlx2-ss"),
        of_small(grow="random"),
        of_small(mask_interval=900),  # as many updates as there are: the last one is not due
        of_small(t_end=10),
    ):
        assert static.actor_evolution_flops == static.critic_evolution_flops == 0
        assert static.train_flops == pytest.approx(336.6 - 7.6 - 21.6)
    assert of_small(method="set", grow="gradient").critic_evolution_flops > 0
    once = of_small(t_end=11)  # 11 updates of the critic, 5 of the actor
    assert (once.actor_evolution_flops, once.critic_evolution_flops > 0) == (0, True)


def test_buffers_that_are_never_trimmed_cost_nothing():
    for fixed in (of_small(trim_ratio=0.0), of_small(buffer_interval=1005)):
        assert fixed.trim_flops == 0
        assert fixed.train_flops == pytest.approx(336.6 - 30.4)
    assert of_small(method="rigl").trim_flops == 0
    assert of_small(method="rigl", trim_ratio=0.1).trim_flops == pytest.approx(30.4)


def test_checks_are_counted_in_updates():
    # A check every 5 environment steps: with 2 updates a step every 10 updates.
    assert of_small(small(updates_per_step=2)).trim_flops == pytest.approx(30.4 / 2)
    # Of 20 environment steps with 4 environments: 5 time steps, each with one update.
    cfg = small(num_envs=4, buffer_interval=20)
    assert of_small(cfg, buffer_interval=20).trim_flops == pytest.approx(30.4)


@pytest.mark.parametrize("algo", ["td3", "sac"])
@pytest.mark.parametrize("method", METHODS)
def test_the_papers_settings_give_the_papers_formulas(algo: str, method: str):
    lane = Lane(method=method, actor_sparsity=0.98, critic_sparsity=0.95)
    run = lane_ledger(hopper(algo), lane)
    paper = paper_ledger(algo, Networks(11, 3, (256, 256), 0.98, 0.95), method=method)
    assert run.actor_hidden == paper.actor_hidden and run.n_step == paper.n_step
    for name in ("total_parameters", "train_flops", "inference_flops"):
        assert getattr(run, name) == pytest.approx(getattr(paper, name), rel=1e-12)
    for name in ("actor_evolution_flops", "critic_evolution_flops", "trim_flops"):
        assert (getattr(run, name) > 0) == (getattr(paper, name) > 0)


def test_tiny_lanes_with_layers_of_different_sparsity():
    lane = Lane(method="tiny", actor_sparsity=(0.0, 0.99, 0.0), critic_sparsity=0.95)
    run = lane_ledger(hopper(), lane)
    (width, _), sizes = run.actor_hidden, (11, 256, 256, 3)
    assert run.actor_parameters == 11 * width + width**2 + 3 * width
    assert abs(run.actor_parameters - 4239) <= 11 + 2 * width + 1 + 3  # one unit more
    assert overall_sparsity(sizes, (0.0, 0.99, 0.0)) == pytest.approx(
        1 - 4239.36 / sum(i * o for i, o in pairwise(sizes))
    )


@pytest.mark.parametrize("method", config.METHODS)
def test_every_method_has_a_ledger(method: str):
    lane = Lane(method=method, actor_sparsity=0.9, critic_sparsity=0.8)
    run = lane_ledger(config.with_topology(hopper("sac"), lane), lane)
    robust = method.startswith("rlx2")
    assert (run.n_step, run.trim_flops > 0) == ((2, True) if robust else (1, False))
    charged = ("rigl", "rlx2", "snfs", "rlx2-snfs", "srigl", "rlx2-srigl", "grasp", "rlx2-grasp")
    assert (run.actor_evolution_flops > 0) == (method in charged)
    assert (run.actor_hidden != (256, 256)) == method.endswith("tiny")


def test_growth_without_the_gradient_is_free(monkeypatch):
    def weakest(key, layer):
        return layer.uniform(key) / 2

    for rule, free in ((weakest, False), (rules.uses_no_gradient(lambda *x: weakest(*x)), True)):
        monkeypatch.setitem(rules.GROW, "weakest", rule)
        run = of_small(small(grow=("weakest",)), grow="weakest")
        assert (run.critic_evolution_flops == 0) == free


def test_intervals_of_actor_and_critic():
    networks = Networks(2, 1, (4,), 0.5, 0.5)
    never = ledger("td3", networks, Iteration(mask_interval=(math.inf, 10)))
    assert (never.actor_evolution_flops, never.critic_evolution_flops > 0) == (0, True)
    with pytest.raises(ValueError, match="mask_interval is 0"):
        ledger("td3", networks, Iteration(mask_interval=(10, 0)))
    with pytest.raises(ValueError, match="3 sparsities for 2 layers"):
        ledger("td3", Networks(2, 1, (4,), (0.5, 0.5, 0.5), 0.5))


# A and C of the small networks: 9.5 and 13.5 at half the links, 19 and 27 with all of them. There
# are 900 updates; the actor makes every second one.
def updates_of(a: float, c: float) -> tuple[float, float]:
    """Critic's and actor's update FLOPs of a batch of 2."""
    return 2 * (a + 8 * c), 2 * (3 * a + c) / 2


@pytest.mark.parametrize("method", ["magnitude", "snip"])
def test_pruning_at_once_by_hand(method: str):
    # The critics are dense at update 1, the actor at updates 1 and 2.
    run = of_small(method=method)
    a, c = 19 * (2 + 898 / 2) / 900, 27 * (1 + 899 / 2) / 900
    found = run.critic_update_flops, run.actor_update_flops
    assert found == pytest.approx(updates_of(a, c))
    assert (run.actor_parameters, run.critic_parameters, run.inference_flops) == (6, 8, 9.5)
    assert run.actor_evolution_flops == run.critic_evolution_flops == run.trim_flops == 0
    half = Lane(method=method, actor_sparsity=0.5, critic_sparsity=0.5, distribution="uniform")
    first = lane_ledger(small(), half, updates=4)
    a, c = 19 * (2 + 2 / 2) / 4, 27 * (1 + 3 / 2) / 4
    found = first.critic_update_flops, first.actor_update_flops
    assert found == pytest.approx(updates_of(a, c))


def test_the_hessian_product_is_charged_once():
    run, other = of_small(method="grasp"), of_small(method="snip")
    assert run.critic_update_flops == other.critic_update_flops
    # Two gradients each: of the actor with one critic, pruned by then, and of both critics.
    assert run.actor_evolution_flops == pytest.approx(2 * 2 * (3 * 19 + 13.5) / 900)
    assert run.critic_evolution_flops == pytest.approx(2 * 2 * 3 * 2 * 27 / 900)


def test_gradual_pruning_by_hand():
    # Critics prune at updates 100, 200, 300, (1 - x³) of the way: 19/27, 26/27 and all of it; of 6
    # and 2 links 4 and 1, 5 and 1, 6 and 2 are gone. The actor prunes once, at its update 100.
    run = of_small(method="gmp", prune_start=0, t_end=300, mask_interval=100)
    wide, narrow = (100 * 4 + 100 * 5 + 600 * 6) / 900, (100 * 1 + 100 * 1 + 600 * 2) / 900
    c = (12 - wide) * 5 / 3 + (4 - narrow) * 7 / 4  # FLOPs of a link: (2 I - 1) / I
    a = 19 * (200 + 700 / 2) / 900
    found = run.critic_update_flops, run.actor_update_flops
    assert found == pytest.approx(updates_of(a, c))
    assert (run.actor_parameters, run.critic_parameters, run.inference_flops) == (6, 8, 9.5)


def test_the_smoothed_gradient_is_dense_at_every_update():
    for fields in ({"method": "rlx2-snfs"}, {"grow": "momentum"}):
        run = of_small(small(grow=("gradient", "momentum")), **fields)
        assert run.actor_evolution_flops == pytest.approx(2 * 2 * 9.5 / 0.5 / 2)
        assert run.critic_evolution_flops == pytest.approx(2 * 4 * 13.5 / 0.5)
        assert run.trim_flops == pytest.approx(30.4)
    for method in ("rlx2-dsr", "rlx2-deepr"):
        assert of_small(small(mask_interval=1), method=method).train_flops == pytest.approx(
            336.6 - 7.6 - 21.6
        )


def test_patterns_determine_the_number_of_links():
    run = of_small(method="rlx2-srigl", actor_sparsity=0.4, critic_sparsity=0.4)
    # Fan-in of 2 x 4: 8 - 3 = 5 links over 4 units are 1 each; of 4 x 1: 3. Of 3 x 4: 8 are 2 each.
    assert (run.actor_parameters, run.critic_parameters) == (4 + 3, 8 + 3)
    half = of_small(structure="1:2", method="ss", actor_sparsity=0.9)
    assert (half.actor_parameters, half.critic_parameters) == (6, 8)
