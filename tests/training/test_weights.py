"""Networks from files: rewound weights, frozen masks, an expert that is followed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax import config
from rlx2_jax.training import weights
from rlx2_jax.training.program import Program, unstack
from rlx2_jax.types import TimeStep

CFG = config.make(
    "td3",
    4,
    2,
    hidden=(16, 16),
    batch_size=16,
    oldest_k=32,
    steps=1000,
    warmup=10,
    capacity=200,
    mask_interval=5,
    buffer_interval=50,
)
RIGL = config.Lane(method="rigl", actor_sparsity=0.6, critic_sparsity=0.5, learning_rate=3e-3)


def train(lanes: list[config.Lane], steps: int):
    """Agents before and after `steps` time steps of random transitions."""
    program = Program(CFG, lanes)
    rng = np.random.default_rng(0)
    shape = (len(lanes), 1)
    state = program.init(rng.normal(size=(*shape, 4)).astype(np.float32), 100)
    first = jax.tree.map(jnp.copy, state.agent)
    for t in range(1, steps + 1):
        obs = rng.normal(size=(*shape, 4)).astype(np.float32)
        ends = np.zeros(shape, bool)
        after = TimeStep(obs, obs, obs[..., 0], ends, ends)
        state, _ = program.step(state, after, t)
    return first, state.agent


def masks_of(agent, lane: int):
    return weights.of_agent(unstack(agent, lane))


@pytest.fixture(scope="module")
def donor(tmp_path_factory):
    """A finished search: its first weights and its last masks in files."""
    folder = tmp_path_factory.mktemp("donor")
    first, last = train([RIGL, dataclasses.replace(RIGL, seed=1)], 60)
    dense, _ = train([dataclasses.replace(RIGL, method="dense")] * 2, 0)
    for i in range(2):
        whole, begun = masks_of(dense, i), masks_of(first, i)
        both = {k: weights.Weights(whole[k].weights, begun[k].mask) for k in whole}
        weights.save(folder / f"initial-{i}.npz", both)
        weights.save(folder / f"final-{i}.npz", masks_of(last, i))
    return folder


def test_files_contain_the_saved_arrays(donor):
    found = weights.load(donor / "final-0.npz")
    assert set(found) == {"actor", "critic"} and set(found["critic"].weights) == {"q1", "q2"}
    for network in found.values():
        for w, m in zip(jax.tree.leaves(network.weights), jax.tree.leaves(network.mask)):
            assert m.dtype == bool and not np.any(w[~m])


def test_a_winning_ticket_is_rewound_and_frozen(donor):
    lane = dataclasses.replace(
        RIGL,
        method="ss",
        weights=str(donor / "initial-0.npz"),
        masks=str(donor / "final-0.npz"),
    )
    begun, found = weights.load(donor / "initial-0.npz"), weights.load(donor / "final-0.npz")
    first, last = train([lane, dataclasses.replace(RIGL, seed=1)], 60)
    for name in ("actor", "critic"):
        start, end = masks_of(first, 0)[name], masks_of(last, 0)[name]
        jax.tree.map(np.testing.assert_array_equal, start.mask, found[name].mask)
        jax.tree.map(np.testing.assert_array_equal, end.mask, found[name].mask)
        rewound = jax.tree.map(lambda w, m: w * m, begun[name].weights, found[name].mask)
        jax.tree.map(np.testing.assert_array_equal, start.weights, rewound)
        moved = jax.tree.map(lambda a, b: np.any(a != b), end.weights, start.weights)
        assert all(jax.tree.leaves(moved))  # weights do learn
        # The search itself moved links, or this test shows nothing.
        assert any(
            jax.tree.leaves(
                jax.tree.map(lambda a, b: np.any(a != b), begun[name].mask, found[name].mask)
            )
        )
    target = unstack(first, 0).actor.target
    jax.tree.map(np.testing.assert_array_equal, target, unstack(first, 0).actor.params)


def test_the_same_in_the_compact_form(donor):
    cfg = dataclasses.replace(CFG, execution="compact")
    lane = dataclasses.replace(
        RIGL,
        method="ss",
        execution="compact",
        weights=str(donor / "initial-1.npz"),
        masks=str(donor / "final-1.npz"),
        seed=1,
    )
    state = Program(cfg, [lane]).init(np.zeros((1, 1, 4), np.float32), 100)
    plain = dataclasses.replace(lane, execution="masked")
    other = Program(CFG, [plain]).init(np.zeros((1, 1, 4), np.float32), 100)
    for name in ("actor", "critic"):
        a, b = masks_of(state.agent, 0)[name], masks_of(other.agent, 0)[name]
        jax.tree.map(np.testing.assert_array_equal, a, b)


def expert_of_first_action(path):
    """Q(s, a) rises with the first action alone."""
    critic = {
        "Dense_0": {"kernel": np.zeros((6, 16), np.float32), "bias": np.ones(16, np.float32)},
        "Dense_1": {"kernel": np.eye(16, dtype=np.float32), "bias": np.ones(16, np.float32)},
        "Dense_2": {"kernel": np.ones((16, 1), np.float32), "bias": np.zeros(1, np.float32)},
    }
    critic["Dense_0"]["kernel"][4] = 0.5
    twins = {"q1": critic, "q2": critic}
    mask = jax.tree.map(lambda x: np.ones(x.shape, bool), twins)
    weights.save(path, {"critic": weights.Weights(twins, mask)})


def test_growth_follows_the_experts_q(tmp_path):
    expert_of_first_action(tmp_path / "expert.npz")
    guided = dataclasses.replace(
        RIGL, expert=str(tmp_path / "expert.npz"), zeta0=0.3, distribution="uniform"
    )
    first, last = train([guided, dataclasses.replace(guided, seed=1)], 150)
    for i in range(2):
        before, after = (masks_of(x, i)["actor"].mask["Dense_2"]["kernel"] for x in (first, last))
        grown = after & ~before
        assert before[:, 1].any() and grown.any()
        assert not grown[:, 1].any()  # the second action does not matter to this expert
        assert after[:, 1].sum() < before[:, 1].sum()


def test_what_does_not_fit_is_refused(donor, tmp_path):
    obs = np.zeros((1, 1, 4), np.float32)

    def begin(*lanes: config.Lane, cfg=CFG):
        Program(cfg, lanes).init(np.repeat(obs, len(lanes), axis=0), 100)

    masks = str(donor / "final-0.npz")
    with pytest.raises(ValueError, match="live parameters"):
        begin(dataclasses.replace(RIGL, masks=masks, actor_sparsity=0.3))
    with pytest.raises(ValueError, match="different shapes"):
        begin(dataclasses.replace(RIGL, masks=masks), cfg=dataclasses.replace(CFG, hidden=(16, 17)))
    with pytest.raises(ValueError, match="does not exist"):
        begin(dataclasses.replace(RIGL, weights=str(tmp_path / "none.npz")))
    (tmp_path / "broken.npz").write_bytes((donor / "final-0.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match="not a file of network weights"):
        begin(dataclasses.replace(RIGL, weights=str(tmp_path / "broken.npz")))
    expert_of_first_action(tmp_path / "expert.npz")
    with pytest.raises(ValueError, match="with and without an expert"):
        begin(RIGL, dataclasses.replace(RIGL, expert=str(tmp_path / "expert.npz")))
    with pytest.raises(ValueError, match="only td3"):
        config.resolve(
            dataclasses.replace(CFG, algo="sac"), dataclasses.replace(RIGL, expert="expert.npz")
        )
