"""The ledger against hand-worked numbers and the paper's printed ratios."""

import dataclasses
import json
import math
from itertools import pairwise
from typing import Any

import pytest

from experiments import paper
from experiments.paper.ledger import ledger as paper_ledger
from rlx2_jax.sparse import accounting, masks
from rlx2_jax.sparse.accounting import Iteration, Ledger, Networks, tiny_width

pytestmark = pytest.mark.fast

HIDDEN = (256, 256)
METHODS = ("dense", "tiny", "ss", "set", "rigl", "rlx2")
SIZES = {r["env"]: (r["obs_dim"], r["action_dim"]) for r in paper.load("environments")}
MODELS = [row for row in paper.load("table2_models") if row["env"] != "average"]
AVERAGE = {r["algo"]: r for r in paper.load("table2_models") if r["env"] == "average"}
by_model = pytest.mark.parametrize("row", MODELS, ids=lambda r: f"{r['algo']}-{r['env']}")


def ledger(algo: str, *sizes: Any, distribution: str = "erdos_renyi", **options: Any) -> Ledger:
    """With the paper's settings."""
    return paper_ledger(algo, Networks(*sizes, distribution=distribution), **options)


def of_row(row: dict[str, Any], **options: Any) -> Ledger:
    sparsities = row["actor_sparsity"], row["critic_sparsity"]
    return ledger(row["algo"], *SIZES[row["env"]], HIDDEN, *sparsities, **options)


def by_hand(algo: str, **options: Any) -> Ledger:
    sizes: dict[str, Any] = {"batch_size": 2, "mask_interval": (10, 10), "buffer_interval": 5}
    return ledger(algo, 2, 1, (4,), 0.5, 0.5, distribution="uniform", **sizes | options)


def test_td3_by_hand() -> None:
    # Actor 2-4-1: (8 + 4) / 2 links, A = (3*4 + 7*1) / 2. Critic 3-4-1: (12 + 4) / 2 links,
    # C = (5*4 + 7*1) / 2.
    run, a, c = by_hand("td3"), 9.5, 13.5
    assert (run.actor_parameters, run.critic_parameters) == (6, 8)
    assert (run.online_parameters, run.total_parameters) == (6 + 2 * 8, 2 * 6 + 4 * 8)
    assert run.critic_update_flops == 2 * (a + 8 * c) == 235
    assert run.actor_update_flops == 2 * (3 * a + c) / 2 == 42
    assert run.actor_evolution_flops == pytest.approx(2 * 2 * a / 0.5 / 10) == pytest.approx(7.6)
    assert run.critic_evolution_flops == pytest.approx(2 * 4 * c / 0.5 / 10) == pytest.approx(21.6)
    assert run.trim_flops == pytest.approx(16 * a / 5) == pytest.approx(30.4)
    assert run.train_flops == pytest.approx(336.6)
    assert run.inference_flops == a
    assert run.relative.train_flops == pytest.approx(336.6 / (2 * 235 + 2 * 42))
    assert run.relative.inference_flops == 0.5


def test_sac_by_hand() -> None:
    # Actor 2-4-2 (mean and log σ): (8 + 8) / 2 links, A = (3*4 + 7*2) / 2.
    run, a, c = by_hand("sac"), 13.0, 13.5
    assert run.n_step == 2
    assert (run.actor_parameters, run.total_parameters) == (8, 8 + 4 * 8)
    assert run.critic_update_flops == 2 * (2 * a + 8 * c)
    assert run.actor_update_flops == 2 * (3 * a + 2 * c)
    assert by_hand("sac", n_step=1).critic_update_flops == 2 * (a + 8 * c)
    assert by_hand("sac", n_step=5).critic_update_flops == 2 * (5 * a + 8 * c)


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_formulas_of_table_5(algo: str) -> None:
    formulas = [r for r in paper.load("flops_formulas") if r["algo"] == algo]
    n_step = {"td3": 3, "sac": 2}[algo]
    run = ledger(algo, 17, 6, HIDDEN, 0, 0, method="dense", n_step=n_step)
    actor = list(pairwise([17, *HIDDEN, 6 * {"td3": 1, "sac": 2}[algo]]))
    critic = list(pairwise([17 + 6, *HIDDEN, 1]))

    for row in formulas:
        per_link = row["quantity"] == "total_parameters"
        m, c = (
            sum((i if per_link else 2 * i - 1) * o for i, o in shapes) for shapes in (actor, critic)
        )
        value = row["actor_coefficient"] * m + row["critic_coefficient"] * c
        value *= 256 if row["quantity"] == "train_flops" else 1
        assert getattr(run, row["quantity"]) == pytest.approx(value, rel=1e-12)


@by_model
def test_size_and_inference_columns_of_table_2(row: dict[str, Any]) -> None:
    ratios = of_row(row).relative
    assert ratios.total_parameters == pytest.approx(row["total_size"], abs=0.002)
    assert ratios.inference_flops == pytest.approx(row["inference_flops"], abs=0.002)
    assert ratios.actor_parameters == pytest.approx(1 - row["actor_sparsity"])
    assert ratios.critic_parameters == pytest.approx(1 - row["critic_sparsity"])


@by_model
def test_training_column_of_table_2(row: dict[str, Any]) -> None:
    """TD3 as printed; SAC by table 5's formula, which disagrees with table 2."""
    one_step, same_n = of_row(row), of_row(row, dense_n_step={"td3": 3, "sac": 2}[row["algo"]])
    if row["algo"] == "td3":
        assert one_step.relative == same_n.relative
        assert one_step.relative.train_flops == pytest.approx(row["train_flops"], abs=0.002)
        return
    expected = {
        "HalfCheetah": (0.177, 0.165),
        "Hopper": (0.042, 0.040),
        "Walker2d": (0.107, 0.100),
        "Ant": (0.214, 0.199),
    }[row["env"]]
    for run, value in zip((one_step, same_n), expected, strict=True):
        assert run.relative.train_flops == pytest.approx(value, abs=0.0005)
        assert row["train_flops"] - run.relative.train_flops > 0.005


@pytest.mark.parametrize(
    "row", paper.load("relative_flops"), ids=lambda r: f"{r['algo']}-{r['method']}"
)
def test_relative_flops_of_table_6(row: dict[str, Any]) -> None:
    """Every printed digit for equally large actor and critic, 0.002 with the tasks' sizes."""

    def ratio(sizes: tuple[int, int], hidden: tuple[int, int]) -> float:
        average = AVERAGE[row["algo"]]
        sparsities = average["actor_sparsity"], average["critic_sparsity"]
        run = ledger(row["algo"], *sizes, hidden, *sparsities, method=row["method"])
        static = ledger(row["algo"], *sizes, hidden, *sparsities, method="ss")
        return run.train_flops / static.train_flops

    assert ratio(SIZES["Hopper"], (10**6, 10**6)) == pytest.approx(row["train_flops"], abs=1e-5)
    tolerance = 0.02 if row["method"] == "tiny" else 0.002  # a whole number of units
    for env in ("HalfCheetah", "Hopper", "Walker2d", "Ant"):
        assert ratio(SIZES[env], HIDDEN) == pytest.approx(row["train_flops"], abs=tolerance)


@pytest.mark.parametrize("row", paper.load("humanoid_models"), ids=lambda r: str(r["hidden"]))
def test_parameters_of_table_14(row: dict[str, Any]) -> None:
    sparsities = row["actor_sparsity"], row["critic_sparsity"]
    run = ledger("td3", *SIZES["Humanoid"], (row["hidden"],) * 2, *sparsities)
    assert run.online_parameters == pytest.approx(row["parameters"], abs=1000)


@by_model
def test_parameters_are_the_masks_links(row: dict[str, Any]) -> None:
    obs_dim, action_dim = SIZES[row["env"]]
    shapes = list(pairwise([obs_dim + action_dim, *HIDDEN, 1]))
    sparsities = masks.layer_sparsities(shapes, row["critic_sparsity"])
    whole = sum(masks.links(shape, s) for shape, s in zip(shapes, sparsities, strict=True))
    assert abs(whole - of_row(row).critic_parameters) < len(shapes)


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_methods(algo: str) -> None:
    runs = {m: ledger(algo, 17, 6, HIDDEN, 0.9, 0.8, method=m) for m in METHODS}
    assert set(dataclasses.asdict(runs["dense"].relative).values()) == {1.0}
    assert runs["dense"] == ledger(algo, 17, 6, HIDDEN, 0.0, 0.0, method="dense")
    assert runs["set"].train_flops == runs["ss"].train_flops < runs["rigl"].train_flops
    assert runs["rigl"].train_flops < runs["rlx2"].train_flops < runs["dense"].train_flops
    assert runs["rigl"].trim_flops == 0 < runs["rlx2"].trim_flops
    assert [runs[m].n_step for m in METHODS] == [1] * 5 + [{"td3": 3, "sac": 2}[algo]]
    for run in runs.values():
        assert run.relative.train_flops == run.train_flops / runs["dense"].train_flops
    assert json.loads(json.dumps(dataclasses.asdict(runs["ss"])))["relative"]["train_flops"] < 1


def test_options() -> None:
    def run(method: str = "rlx2", **options: Any) -> Ledger:
        return ledger("sac", 17, 6, HIDDEN, 0.9, 0.8, method=method, **options)

    never = run(mask_interval=(math.inf, math.inf), buffer_interval=math.inf)
    assert never.train_flops == run("ss", n_step=2).train_flops
    assert run(oldest_k=512).trim_flops == pytest.approx(run().trim_flops / 4)
    assert run(policy_delay=4).actor_update_flops == run().actor_update_flops / 4
    assert run("ss", buffer_interval=10_000).trim_flops == run().trim_flops
    assert run(distribution="uniform").inference_flops != run().inference_flops
    n_step = [run(n_step=n).train_flops for n in range(1, 6)]
    assert n_step == sorted(set(n_step))
    td3 = {ledger("td3", 17, 6, HIDDEN, 0.9, 0.8, n_step=n).train_flops for n in range(1, 6)}
    assert len(td3) == 1


@pytest.mark.parametrize("algo", ["td3", "sac"])
@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("hidden", [(64,), (256, 256), (128, 32, 64)])
def test_more_sparsity_costs_less(algo: str, method: str, hidden: tuple[int, ...]) -> None:
    grid = [0.0, 0.3, 0.6, 0.9, 0.95]
    runs = [ledger(algo, 11, 3, hidden, s, s, method=method) for s in grid]
    for fuller, sparser in pairwise(runs):
        assert sparser.total_parameters < fuller.total_parameters
        assert sparser.train_flops < fuller.train_flops
        assert sparser.inference_flops < fuller.inference_flops
    assert runs[0].relative.total_parameters == 1


def test_tiny_widths_of_hopper() -> None:
    assert (tiny_width(11, 3, HIDDEN, 0.98), tiny_width(14, 1, HIDDEN, 0.95)) == (31, 52)
    run = ledger("td3", 11, 3, HIDDEN, 0.98, 0.95, method="tiny")
    assert (run.actor_hidden, run.critic_hidden) == ((31, 31), (52, 52))
    assert run.actor_parameters == 11 * 31 + 31 * 31 + 31 * 3
    assert ledger("td3", 11, 3, HIDDEN, 0.98, 0.95).actor_hidden == HIDDEN


@pytest.mark.parametrize("hidden", [(7,), (256, 256), (64, 16), (32, 64, 48, 16)])
@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.77, 0.9, 0.99, 0.9999])
def test_tiny_width_is_the_nearest(hidden: tuple[int, ...], sparsity: float) -> None:
    def count(h: int) -> int:
        sizes = [5, *(min(h, width) for width in hidden), 2]
        return sum(i * o for i, o in pairwise(sizes))

    target = (1 - sparsity) * count(max(hidden))
    nearest = min(range(1, max(hidden) + 1), key=lambda h: abs(count(h) - target))
    assert tiny_width(5, 2, hidden, sparsity) == nearest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs_dim": 0}, "obs_dim is 0: give an integer of at least 1"),
        ({"action_dim": -1}, "action_dim is -1"),
        ({"hidden": (256, 0)}, "hidden width is 0"),
        ({"hidden": (2.5,)}, "hidden width is 2.5"),
        ({"hidden": (), "tiny": True}, "at least one hidden layer"),
        ({"hidden": None}, "hidden is None: give the hidden layers of an MLP, or layers"),
        ({"actor_sparsity": 1.0}, r"sparsity 1.0 is not in \[0, 1\)"),
        ({"critic_sparsity": -0.1}, r"sparsity -0.1 is not in \[0, 1\)"),
        ({"critic_sparsity": math.nan}, r"sparsity nan is not in \[0, 1\)"),
        ({"distribution": "gaussian"}, "distribution"),
        ({"critics": 0}, "critics is 0"),
    ],
)
def test_bad_networks(change: dict[str, Any], message: str) -> None:
    good = Networks(11, 3, HIDDEN, 0.98, 0.95)
    with pytest.raises(ValueError, match=message):
        accounting.ledger("td3", dataclasses.replace(good, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"n_step": 0}, "n_step is 0"),
        ({"oldest_k": 0}, "oldest_k is 0"),
        ({"policy_delay": 0}, "policy_delay is 0"),
        ({"mask_interval": (1, 0)}, "mask_interval is 0: give at least 1, or math.inf"),
        ({"buffer_interval": math.nan}, "buffer_interval is nan"),
    ],
)
def test_bad_iterations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accounting.ledger("td3", Networks(11, 3, HIDDEN, 0.98, 0.95), Iteration(**change))


def test_unknown_names() -> None:
    sizes = (11, 3, HIDDEN, 0.98, 0.95)
    with pytest.raises(ValueError, match="algo is 'ppo': choose one of td3, sac"):
        accounting.ledger("ppo", Networks(*sizes))
    with pytest.raises(ValueError, match="method is 'best': choose one of dense, tiny"):
        ledger("td3", *sizes, method="best")
    with pytest.raises(ValueError, match="dense_n_step is 0"):
        ledger("td3", *sizes, dense_n_step=0)
