"""The defining property of every method of `sparse.methods` in the agents."""

import dataclasses
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import assert_on_mask, quick, setting, windows
from small_runs import rows, stop_after

from rlx2_jax import config
from rlx2_jax.agents import ALGORITHMS
from rlx2_jax.config import Config, Lane
from rlx2_jax.kernels import dense_mlp, native
from rlx2_jax.networks import masked, optimize
from rlx2_jax.networks.evolution import Evolution, Update
from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.sparse.topology import Schedule
from rlx2_jax.training import execute as execution
from rlx2_jax.training import guards, plan, segments
from rlx2_jax.training.run import Run
from rlx2_jax.types import Network

pytestmark = pytest.mark.fast

HALF: dict[str, Any] = {"actor_sparsity": 0.5, "critic_sparsity": 0.5}


def train(algo: str, updates: int, **fields: Any) -> tuple[Config, Lane, list[Any]]:
    """States of a lane after 0, 1, 2, ... updates: masks may change at every fourth update of a
    network, TD3's actor makes every second one."""
    lane = Lane(**{**HALF, **fields})
    cfg = config.with_topology(setting(algo, critics=2), lane)
    update, hyper = _update(cfg), config.hyper(cfg, lane)
    state = quick(ALGORITHMS[algo].init, static_argnums=(1, 2))(jax.random.key(0), cfg, lane)
    states = [jax.tree.map(np.asarray, state)]
    for count in range(1, updates + 1):
        batch = windows(count, 16, dtype="float32")
        key = jax.random.fold_in(jax.random.key(1), count)
        state, metrics = update(state, batch, key, np.int32(count), np.int32(count), hyper)
        assert bool(metrics["finite"])
        states.append(jax.tree.map(np.asarray, state))
    return cfg, lane, states


def _update(cfg: Config) -> Any:
    step = ALGORITHMS[cfg.algo].update
    return quick(lambda s, b, k, t, c, h: step(s, b, k, t, c, cfg, h))


def kernels(network: Network) -> dict[str, np.ndarray]:
    """Masks [members, in, out] by layer."""
    found = masked.kernels(network.masks, network.members)
    return {k: np.asarray(m).reshape(-1, *m.shape[-2:]) for k, m in found.items()}


def counts(network: Network) -> np.ndarray:
    """Live links [members, layers]."""
    return np.stack([m.sum((1, 2)) for m in kernels(network).values()], axis=1)


def changed(states: list[Any], name: str) -> list[int]:
    """The updates that changed the masks of a network."""
    masks = [kernels(getattr(state, name)) for state in states]
    pairs = enumerate(pairwise(masks), 1)
    return [i for i, (a, b) in pairs if any((a[k] != b[k]).any() for k in a)]


def check_zeros(states: list[Any]) -> None:
    for state in states[:: max(1, len(states) // 6)]:
        assert_on_mask(state.actor)
        assert_on_mask(state.critic)


@pytest.mark.parametrize("method", ["dsr", "rlx2-snfs"])
def test_links_move_between_layers_and_their_number_stays(method):
    _, _, states = train("td3", 12, method=method)
    check_zeros(states)
    moved = []
    for name, events in (("actor", [8]), ("critic", [4, 8, 12])):
        found = [counts(getattr(state, name)) for state in states]
        assert all((c.sum(1) == found[0].sum(1)).all() for c in found)  # of every member
        assert changed(states, name) == events
        moved.append(any((c != found[0]).any() for c in found))
    assert any(moved)
    before, after = (kernels(states[i].critic) for i in (3, 4))
    for layer, mask in kernels(states[4].critic).items():
        weights = masked.kernels(states[4].critic.params, 2)[layer]
        assert not weights[after[layer] & ~before[layer]].any() and mask.any()


def test_deepr_replaces_links_that_would_change_their_sign():
    cfg, _, states = train("sac", 10, method="deepr", learning_rate=0.02)
    assert cfg.mask_interval == 1
    check_zeros(states)
    replaced = 0
    for before, after in pairwise(states):
        for name in ("actor", "critic"):
            old, new = getattr(before, name), getattr(after, name)
            assert (counts(old) == counts(new)).all()
            for layer, weights in masked.kernels(new.params, new.members).items():
                positive = np.asarray(new.signs[layer])
                assert (np.where(positive, weights, -weights) >= 0).all()
                fresh = masked.kernels(new.masks, new.members)[layer]
                fresh = fresh & ~masked.kernels(old.masks, old.members)[layer]
                assert not weights[fresh].any()
                replaced += fresh.sum()
    assert replaced > 20


def fan_in(mask: np.ndarray) -> bool:
    return len(set(mask.sum(1).ravel().tolist())) == 1


def one_of_two(mask: np.ndarray) -> bool:
    members, inputs, outputs = mask.shape
    return (mask.reshape(members, inputs // 2, 2, outputs).sum(2) == 1).all()


def blocks(mask: np.ndarray) -> bool:
    members, inputs, outputs = mask.shape
    whole = mask.reshape(members, inputs // 2, 2, outputs // 2, 2).sum((2, 4))
    return set(np.unique(whole).tolist()) == {0, 4}


@pytest.mark.parametrize(
    ("fields", "holds", "divides"),
    [
        ({"method": "srigl"}, fan_in, lambda i, o: True),
        ({"method": "rigl", "structure": "1:2"}, one_of_two, lambda i, o: i % 2 == 0),
        ({"method": "set", "structure": "2x2"}, blocks, lambda i, o: i % 2 == o % 2 == 0),
    ],
)
def test_patterns_hold_at_every_update(fields, holds, divides):
    cfg, lane, states = train("td3", 8, **fields)
    check_zeros(states)
    links = config.lane_links(cfg, lane)
    assert changed(states, "critic") == [4, 8] and changed(states, "actor") == [8]
    for state in states:
        for name, own in (("actor", links.actor), ("critic", links.critic)):
            network = getattr(state, name)
            assert (counts(network) == own).all()
            for mask in kernels(network).values():
                if divides(*mask.shape[1:]):
                    assert holds(mask)


def test_static_patterns():
    """Masks that never change share the program of all others, and n:m decides the sparsity."""
    lane = Lane(method="ss", structure="1:2", actor_sparsity=0.9)
    cfg = config.with_topology(setting("td3"), lane)
    assert cfg.topology == RIGL and config.resolve(cfg, lane).actor_sparsity == 0.5
    state = ALGORITHMS["td3"].init(jax.random.key(0), cfg, lane)
    assert all(one_of_two(m) for m in kernels(state.actor).values())
    blocky = ALGORITHMS["td3"].init(jax.random.key(0), cfg, Lane(method="ss", structure="2x2"))
    assert blocks(kernels(blocky.critic)["Dense_0/kernel"])


def test_gradual_pruning_follows_the_cubic_schedule():
    """Critics: at 8, 12, 16 and 20 of the way from 4; the actor, at its 8th update, all at once."""
    cfg, lane, states = train("td3", 22, method="gmp", prune_start=4, t_end=20)
    check_zeros(states)
    final = config.lane_links(cfg, lane, pruned=True)
    assert config.lane_links(cfg, lane).critic == (6 * 16, 16)
    assert changed(states, "critic") == [8, 12, 16, 20]
    done = {8: 1 - 0.75**3, 12: 1 - 0.5**3, 16: 1 - 0.25**3, 20: 1.0}
    share = 0.0
    for update, state in enumerate(states):
        share = done.get(update, share)
        sizes = zip((6 * 16, 16), final.critic)
        expected = [size - int((size - links) * share) for size, links in sizes]
        assert (counts(state.critic) == expected).all(), update
    assert changed(states, "actor") == [8, 16]
    # Its own updates count: from 2 on, at 4 and at 8, the last multiple of 4 below 10.
    sizes = zip((4 * 16, 16 * 2), final.actor)
    expected = [size - int((size - links) * (1 - (2 / 3) ** 3)) for size, links in sizes]
    assert (counts(states[8].actor) == expected).all()
    assert (counts(states[16].actor) == final.actor).all()
    old, new = (masked.kernels(states[i].critic.params, 2)["Dense_0/kernel"] for i in (7, 8))
    gone = (old != 0) & (new == 0)
    assert np.abs(old[0])[gone[0]].max() <= np.abs(old[0])[new[0] != 0].min()


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_the_smallest_weights_are_pruned_once(scope):
    cfg, lane, states = train("td3", 6, method="magnitude", scope=scope, prune_start=2)
    check_zeros(states)
    final = config.lane_links(cfg, lane, pruned=True)
    assert changed(states, "critic") == [3] and changed(states, "actor") == [4]
    assert counts(states[0].actor).sum() == 4 * 16 + 16 * 2
    for at, name, links in ((3, "critic", final.critic), (4, "actor", final.actor)):
        found = counts(getattr(states[at], name))
        if scope == "layer":
            assert (found == links).all()
        assert (found.sum(1) == sum(links)).all()
        network = getattr(states[at - 1], name)
        masks = kernels(getattr(states[at], name))
        weights = masked.kernels(network.params, network.members)
        for member in range(network.members or 1):
            pairs = [
                (np.abs(np.asarray(weights[k]).reshape(m.shape)[member]), m[member])
                for k, m in masks.items()
            ]
            if scope == "global":
                pairs = [tuple(np.concatenate([x.ravel() for x in xs]) for xs in zip(*pairs))]
            pairs = [pair for pair in pairs if not pair[1].all()]
            assert pairs and all(s[~m].max() <= s[m].min() for s, m in pairs)


@pytest.mark.parametrize(("algo", "method"), [("sac", "snip"), ("td3", "rlx2-grasp")])
def test_pruning_by_gradients_happens_at_the_first_update(algo, method):
    cfg, lane, states = train(algo, 4, method=method)
    check_zeros(states[3:])
    final = config.lane_links(cfg, lane, pruned=True)
    delay = cfg.policy_delay
    assert changed(states, "critic") == [1] and changed(states, "actor") == [delay]
    assert (counts(states[1].critic).sum(1) == sum(final.critic)).all()
    assert counts(states[delay].actor).sum() == sum(final.actor)


# By hand: L = 1/2 Σ h θ², so g = h θ and H g = h² θ.
H = jnp.array([[1.0, 2.0], [3.0, 0.5]])
THETA = jnp.array([[4.0, -1.0], [1.0, 10.0]])


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        ("magnitude", [[1, 0], [0, 1]]),  # |θ|: 4, 1, 1, 10
        ("snip", [[1, 0], [0, 1]]),  # h θ²: 16, 2, 3, 50
        ("grasp", [[1, 0], [0, 1]]),  # h² θ²: 16, 4, 9, 25
    ],
)
@pytest.mark.parametrize("links", [2, 1])
def test_scores_by_hand(method, kept, links):
    params = {"l0": {"kernel": THETA, "bias": jnp.ones(2)}}
    network = optimize.init(params, jax.tree.map(lambda x: x == x, params), target=params)
    topology = Topology(method, scope="layer" if method == "magnitude" else "global")
    schedule = Schedule(*map(jnp.asarray, (1.0, 1, 1, 0, 0)), links={"l0/kernel": jnp.int32(links)})

    def loss(bound):
        return 0.5 * jnp.sum(H * bound.params["l0"]["kernel"] ** 2), None

    def learn(count):
        return optimize.learn(
            network, loss, jnp.float32(0.1), Update(count, schedule, jax.random.key(0)),
            Evolution(rows=1, interval=1, topology=topology),
        )[0]  # fmt: skip

    new = quick(learn)(jnp.int32(1))
    expected = np.array(kept, bool) if links == 2 else np.array([[0, 0], [0, 1]], bool)
    assert (np.asarray(new.masks["l0"]["kernel"]) == expected).all()
    np.testing.assert_array_equal(new.params["l0"]["kernel"], np.where(expected, THETA, 0.0))
    np.testing.assert_array_equal(new.target["l0"]["kernel"], np.where(expected, THETA, 0.0))
    assert quick(learn)(jnp.int32(2)).masks["l0"]["kernel"].all()  # too late


def test_snip_and_grasp_disagree_where_they_should():
    """h = 1, 6 and θ = 3, 1: SNIP sees 9 and 6, GraSP 9 and 36."""
    h, theta = jnp.array([[1.0], [6.0]]), jnp.array([[3.0], [1.0]])
    params = {"l0": {"kernel": theta, "bias": jnp.ones(1)}}
    network = optimize.init(params, jax.tree.map(lambda x: x == x, params))
    schedule = Schedule(*map(jnp.asarray, (1.0, 1, 1, 0, 0)), links={"l0/kernel": jnp.int32(1)})

    def loss(bound: Any) -> tuple[jax.Array, None]:
        return 0.5 * jnp.sum(h * bound.params["l0"]["kernel"] ** 2), None

    for method, row in (("snip", 0), ("grasp", 1)):
        new = optimize.learn(
            network, loss, jnp.float32(0.1), Update(jnp.int32(1), schedule, jax.random.key(0)),
            Evolution(rows=1, interval=1, topology=Topology(method, scope="global")), evolve=True,
        )[0]  # fmt: skip
        assert np.flatnonzero(new.masks["l0"]["kernel"]).tolist() == [row]


def test_the_hessian_product_of_a_network_of_kernels():
    """Networks large enough for the kernels, which have no second derivatives; against the
    gradient of gᵀv."""
    rng = np.random.default_rng(0)
    sizes = (32, 64, 64, 1)
    params = {
        f"Dense_{i}": {
            "kernel": jnp.asarray(rng.normal(size=(2, a, b)) / 8, jnp.float32),
            "bias": jnp.zeros((2, b)),
        }
        for i, (a, b) in enumerate(pairwise(sizes))
    }
    network = Network(params, None, None, members=2)
    x = jnp.asarray(rng.normal(size=(256, 32)), jnp.float32)
    loss = lambda bound: (jnp.mean(bound(x) ** 2), None)  # noqa: E731
    slope = jax.grad(lambda p: loss(masked.bind(p, members=2))[0])
    vector = slope(params)
    found = masked._hessian_product(network, loss, vector)
    if native.execution() == "native":
        with pytest.raises(ValueError, match="cannot be differentiated"):
            jax.jvp(slope, (params,), (vector,))

    def product(params):
        pairs = zip(jax.tree.leaves(slope(params)), jax.tree.leaves(vector))
        return sum(jnp.vdot(a, b) for a, b in pairs)

    with dense_mlp.plain_xla():
        expected = jax.grad(product)(params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()) + 1e-9)


def test_lanes_are_grouped_by_their_method():
    cfg = setting("td3", hidden=(64, 64))
    names = ("rlx2", "gmp", "set", "deepr", "gmp", "ss")
    lanes = [Lane(method=m, mask_interval=None if m == "deepr" else 8) for m in names]
    lanes = [config.resolve(dataclasses.replace(cfg, mask_interval=1), x) for x in lanes]
    parts = plan.parts(dataclasses.replace(cfg, mask_interval=1), lanes)
    assert [part.lanes for part in parts] == [(0, 2, 5), (1, 4), (3,)]
    assert [part.config.topology.method for part in parts] == ["rigl", "gmp", "deepr"]
    assert [part.config.mask_interval for part in parts] == [8, 8, 1]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"method": "gmp"}, "does not support gmp"),
        ({"method": "dsr"}, "does not support dsr"),
        ({"method": "srigl"}, "does not support fan_in masks"),
    ],
)
def test_the_compact_form_refuses_by_name_and_auto_is_masked(fields, text):
    cfg = setting("td3", hidden=(256, 256))
    lane = Lane(actor_sparsity=0.9, critic_sparsity=0.9, **fields)
    with pytest.raises(ValueError, match=f"execution='compact' .*{text}.*'masked' or 'auto'"):
        plan.choose(cfg, [lane], "compact")
    assert plan.choose(cfg, [lane], "auto")[0].execution == "masked"
    static = Lane(method="ss", structure="fan_in", actor_sparsity=0.9, critic_sparsity=0.9)
    (chosen,) = plan.choose(cfg, [static], "compact")
    (part,) = plan.parts(cfg, [chosen])
    assert part.config.links == config.lane_links(cfg, static)
    state = jax.eval_shape(lambda: ALGORITHMS["td3"].init(jax.random.key(0), part.config, chosen))
    assert state.actor.form == "compact"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"method": "dsr", "structure": "fan_in"},
            "dsr has no structure; these methods do: rigl, set",
        ),
        (
            {"method": "rigl", "scope": "global"},
            "rigl has no scope; these methods do: gmp, magnitude",
        ),
        ({"method": "snip", "structure": "1:2"}, "scope='global' .* use scope='layer'"),
        ({"method": "rigl", "structure": "3by4"}, "structure='3by4': use one of"),
        ({"method": "rigl", "structure": "5:7"}, "structure='5:7' divides no layer of the actor"),
        ({"method": "dense", "structure": "1:2"}, "trains dense networks, which 1:2"),
        ({"method": "gmp", "actor_sparsity": 0.0, "critic_sparsity": 0.0}, "which gmp does not"),
        ({"method": "gmp", "t_end": 4, "prune_start": 3}, "would stay dense; lower mask_interval"),
        ({"method": "gmp", "t_end": 2000}, "last one is never reached; lower t_end"),
        ({"method": "snip", "prune_start": 1000}, "would stay dense; lower prune_start"),
        ({"topology": "static"}, "topology='static' never changes masks"),
    ],
)
def test_mistakes_are_named_before_anything_compiles(fields, message):
    lane = Lane(**{**HALF, **fields})
    with pytest.raises(ValueError, match=message):
        config.with_topology(setting("td3"), lane)


def test_a_program_of_another_method_is_refused():
    with pytest.raises(ValueError, match=r"method='snip' .*with_topology\(config, lane\)"):
        config.hyper(setting("td3"), Lane(method="snip"))
    with pytest.raises(ValueError, match="lanes of one program"):
        config.with_topology(setting("td3"), Lane(method="snip"), Lane(method="rigl"))


def test_pruning_is_an_event_at_its_update():
    cfg = setting("td3", warmup=10, capacity=1000, buffer_interval=2**31 - 1)
    cfg = config.with_topology(cfg, Lane(method="snip", prune_start=4))
    assert segments.prune_counts(cfg) == (5, 6)  # the actor at its third update
    found = [segments.next_event(cfg, t) for t in (0, 14, 15, 16)]
    assert found == [15, 16, 1001, 1001] or found == [15, 15, 16, 1001]
    traced = [int(segments.next_event(cfg, jnp.int32(t))) for t in (0, 14, 15, 16)]
    assert traced == found


def mixed_run(algo: str) -> Run:
    """A pruning and a structured lane on a probe, with mask updates, trims and a checkpoint."""
    methods = ("gmp", "rlx2-srigl") if algo == "td3" else ("rlx2-snip", "dsr")
    cfg = config.make(
        algo, 1, 1, hidden=(16, 16), batch_size=16, oldest_k=32, steps=160, warmup=40,
        capacity=150, mask_interval=10, buffer_interval=20,
    )  # fmt: skip
    lanes = [
        config.resolve(cfg, Lane(method=m, b_min=60, d0=1e-4, t0=60, mask_interval=10, **HALF))
        for m in methods
    ]
    return Run(
        "rlx2_jax/Truncation-v0", cfg, tuple(lanes), eval_interval=40, metrics_interval=40,
        checkpoint_interval=50, episodes=2,
    )  # fmt: skip


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_a_stopped_run_continues_bit_for_bit(algo, tmp_path, monkeypatch):
    run = mixed_run(algo)
    whole = execution.execute(run, tmp_path / "whole", progress=False)
    for row in whole["lanes"]:
        assert row["actor_sparsity"] == pytest.approx(0.5, abs=0.05) and row["alive"]
        assert row["critic_evolutions"] >= 1 and row["actor_evolutions"] >= 1
    if algo == "sac":
        assert whole["lanes"][0]["critic_evolutions"] == 1  # snip
    stop_after(monkeypatch, 100)
    with pytest.raises(guards.Stopped):
        execution.execute(run, tmp_path / "stopped", progress=False)
    monkeypatch.undo()
    execution.execute(run, tmp_path / "stopped", resume=True, progress=False)
    pair = [rows(tmp_path / x / "evaluations.csv") for x in ("whole", "stopped")]
    digests = [[(r["step"], r["lane"], r["weights"]) for r in found] for found in pair]
    assert digests[0] == digests[1] and len(digests[0]) == 10
