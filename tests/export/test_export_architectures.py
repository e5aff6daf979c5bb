"""Every command that reads policies supports every architecture, tested with SimBa."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import SHORT, observations, write_finished

import rlx2_jax as rlx2
from experiments import publish
from rlx2_jax import config
from rlx2_jax.agents import ALGORITHMS
from rlx2_jax.cli import evaluate
from rlx2_jax.cli import export as command
from rlx2_jax.export import actor, npz
from rlx2_jax.networks import forms
from rlx2_jax.training import weights
from rlx2_jax.training.checkpoint import Checkpoints
from rlx2_jax.training.run import Run, make_loop
from rlx2_jax.types import Network

FORMS = [
    pytest.param(("td3", "masked"), id="td3-masked"),
    pytest.param(("sac", "compact"), id="sac-compact", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=FORMS)
def finished(request, tmp_path_factory):
    """A run with a checkpoint and final files, and the actor in both."""
    algo, form = request.param
    cfg = config.make(algo, 4, 1, architecture="simba", width=8, blocks=2, **SHORT)
    lane = config.Lane(seed=3, actor_sparsity=0.6, critic_sparsity=0.5, execution=form)
    run = Run("InvertedPendulum-v5", cfg, (config.resolve(cfg, lane),), chunk=1)
    directory = tmp_path_factory.mktemp(algo) / "run"
    loop = make_loop(run, run.lanes, directory)
    (snapshot,) = loop.snapshots()
    network = _trained(snapshot.state.agent.actor)
    agent = snapshot.state.agent._replace(actor=network)
    snapshot = snapshot._replace(state=snapshot.state._replace(agent=agent))
    final = weights.of_agent(jax.tree.map(lambda x: x[0], agent))
    write_finished(directory, cfg, [(lane, 3.5)], [final], chunk=1)
    store = Checkpoints(directory / "checkpoints")
    store.save(0, 0, [snapshot], [], {"lanes": loop.lanes})
    loop.close()
    return run, directory, jax.tree.map(lambda x: x[0], network)


def _trained(network: Network) -> Network:
    """Nothing stays at its initial value: statistics, and of the masked form biases and norms."""
    rng = np.random.default_rng(0)
    noise = lambda x: 0.3 * jnp.asarray(rng.normal(size=x.shape), x.dtype)  # noqa: E731
    nudge = lambda x: x + noise(x) if x.ndim == 2 else x  # noqa: E731
    grow = lambda x: x * (1 + noise(x))  # noqa: E731
    params = jax.tree.map(nudge if network.form == "masked" else grow, network.params)
    stats = jax.tree.map(lambda x: abs(nudge(x)), network.stats)
    return network._replace(params=params, stats=stats)


def test_the_policy_is_the_actor(finished):
    run, directory, network = finished
    policy = rlx2.load_policy(directory)
    obs = observations(policy, 500)
    mean_action = ALGORITHMS[run.config.algo].mean_action
    wanted = np.asarray(mean_action(forms.online(network), jnp.asarray(obs)))
    assert wanted.std() > 0.1
    assert np.abs(policy(obs) - wanted).max() <= 1e-5
    found = actor.actor_of(run, directory, 0)
    assert np.abs(actor.actions(found, run.config, obs) - wanted).max() <= 1e-6
    names = [op.name for op in policy.ops]
    block = ["save", "layer_norm", "linear", "relu", "linear", "add_saved"]
    assert names == ["normalize", "linear", *block, *block, "layer_norm", "linear"]
    live = sum(int(m.sum()) for m in jax.tree.leaves(found.masks) if m.ndim == 2)
    heads = ALGORITHMS[run.config.algo].networks.actor_heads
    assert policy.links == live if heads == 1 else policy.links < live


def test_a_finished_chunk_has_its_statistics_too(finished):
    run, directory, _ = finished
    found = actor.actor_of(run, directory, 0)
    final = weights.load(directory / "final" / "lane-0.npz")["actor"]
    jax.tree.map(np.testing.assert_array_equal, found[:2], (final.weights, final.mask))
    jax.tree.map(np.testing.assert_array_equal, found.stats, final.stats)


def test_every_format(finished, tmp_path):
    """`export_lane` compares each with the JAX actor."""
    _, directory, _ = finished
    said = []
    command.export_lane(directory, out=tmp_path, int8=True, episodes=2, say=said.append)
    assert npz.load(tmp_path / "policy.npz").sizes[1] == 8
    assert "2 paired episodes" in "\n".join(said)


def test_publish_and_evaluate(finished, tmp_path):
    _, directory, _ = finished
    (made,) = publish.publish_all([directory], tmp_path, count=3, say=lambda text: None)
    for runtime in ("npz", "c", "onnx"):
        assert evaluate.play(evaluate.find(made, runtime=runtime), range(3), say=lambda text: None)


def test_missing_statistics_are_named(finished):
    run, directory, _ = finished
    found = actor.actor_of(run, directory, 0)
    with pytest.raises(ValueError, match="statistics"):
        actor.policy_of(found._replace(stats=None), run.config)
