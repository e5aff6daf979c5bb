"""Critics that see actions in the environment's units (`critic_actions`).

The hand-worked critic is Q(s, a) = a_0 of the action as it sees it. Where that goes from 0 to 4, an
action of x in [-1, 1] is worth 2 + 2x.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from lanes import quick, setting, stack, windows
from small_runs import small_run

from rlx2_jax import config, envs, files, networks
from rlx2_jax.agents import sac
from rlx2_jax.config import Config, Lane
from rlx2_jax.envs.device import from_functions
from rlx2_jax.envs.spaces import Boxes
from rlx2_jax.networks import compact, convert
from rlx2_jax.training import lane, launch
from rlx2_jax.training.evaluate import DeviceEvaluator
from rlx2_jax.training.program import Program
from rlx2_jax.training.run import Run, RunError, read_run
from rlx2_jax.types import Network, TimeStep

pytestmark = pytest.mark.fast

BOX = {"critic_actions": "environment", "action_low": (0.0, -0.4), "action_high": (4.0, 0.4)}
FREE = Lane(method="dense", learning_rate=0.0, target_noise=0.0)  # has gradients but does not move
BIAS = 0.3  # of the actor: its action is tanh 0.3 in every component, whatever it observes


def hand_made(cfg: Config) -> Any:
    """Q(s, a) = a_0 = relu(a_0) - relu(-a_0), twice, and an actor with a constant output."""
    obs, act = cfg.obs_dim, cfg.action_dim
    signs = jnp.array([1.0, -1.0])
    q = {
        "Dense_0": {"kernel": jnp.zeros((obs + act, 2)).at[obs].set(signs), "bias": jnp.zeros(2)},
        "Dense_1": {"kernel": signs[:, None], "bias": jnp.zeros(1)},
    }
    state = lane.ALGORITHMS[cfg.algo].init(jax.random.key(0), cfg, FREE)
    actor = jax.tree.map(jnp.zeros_like, state.actor.params)
    actor["Dense_1"]["bias"] = actor["Dense_1"]["bias"].at[:act].set(BIAS)  # SAC: log σ = -1.5
    twins = jax.tree.map(lambda x: jnp.stack([x, x]), q)
    return state._replace(actor=begin(state.actor, actor), critic=begin(state.critic, twins))


def begin(network: Network, params: Any) -> Network:
    copy = jax.tree.map(jnp.copy, params)
    return network._replace(params=params, target=None if network.target is None else copy)


def with_links(cfg: Config, state: Any) -> tuple[Config, Any]:
    """The compact form of both."""
    links = config.lane_links(cfg, FREE)
    parts = {}
    for name, inputs in (("actor", cfg.actor_inputs), ("critic", cfg.critic_inputs)):
        network = getattr(state, name)
        spec = networks.spec(network.module, inputs, getattr(links, name))
        parts[name] = compact.pack(network, spec)
    return dataclasses.replace(cfg, execution="compact", links=links), state._replace(**parts)


def test_actions_are_mapped_to_the_bounds():
    obs, action = jnp.full((3, 1), 7.0), jnp.array([[0.5, 1.0], [-1.0, -1.0], [0.0, 0.25]])
    found = networks.critic_input(obs, action, (BOX["action_low"], BOX["action_high"]))
    expected = [[7.0, 3.0, 0.4], [7.0, 0.0, -0.4], [7.0, 2.0, 0.1]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    plain = jax.make_jaxpr(lambda s, a: networks.critic_input(s, a, None))(obs, action)
    assert "mul" not in {e.primitive.name for e in plain.jaxpr.eqns}


@pytest.mark.long
@pytest.mark.parametrize("form", ["masked", "compact"])
@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_losses_target_and_gradient_by_hand(algo, form):
    fields = {"n_max": 1, "mask_interval": 100, "policy_delay": 1, "target_interval": 1}
    cfg = setting(algo, hidden=(2,), **fields, **BOX)
    state = hand_made(cfg)
    if form == "compact":
        cfg, state = with_links(cfg, state)
    batch = windows(0, 16, n=1, dtype="float32")
    never = jnp.zeros_like(batch.terminated)
    batch = batch._replace(reward=jnp.zeros((16, 1)), terminated=never, truncated=never)
    own = {"noise": sac.Noise(jnp.zeros((1, 16, 2)), jnp.zeros((16, 2)))} if algo == "sac" else {}
    one, hyper = jnp.int32(1), config.hyper(cfg, FREE)
    update = lane.ALGORITHMS[algo].update
    new, metrics = quick(lambda s, b: update(s, b, jax.random.key(0), one, one, cfg, hyper, **own))(
        state, batch
    )

    t = math.tanh(BIAS)
    slope = 1 - t**2
    value, gradient, log_prob = 2 + 2 * t, -2 * slope, 0.0
    if algo == "sac":  # two components; d log π / du = 2 tanh u
        log_prob = 2 * (1.5 - 0.5 * math.log(2 * math.pi) - math.log(slope))
        gradient += 2 * t
    q = 2 + 2 * np.asarray(batch.action)[:, 0].mean()
    assert float(metrics["q"]) == pytest.approx(q, rel=1e-5)
    assert float(metrics["target"]) == pytest.approx(0.99 * (value - log_prob), rel=1e-5)
    assert float(metrics["actor_loss"]) == pytest.approx(log_prob - value, rel=1e-5)
    mu: Any = convert.to_masked(new.actor).moments.mu
    assert float(mu["Dense_1"]["bias"][0]) == pytest.approx(0.1 * gradient, rel=1e-5)


def toy() -> Any:
    """One step per episode; the reward is the action in units of -3 to 3."""
    step = lambda task, action: (task, jnp.zeros(1), 3.0 * action[0], False)  # noqa: E731
    spec = envs.EnvSpec(1, 1, 1, (-3.0,), (3.0,))
    return from_functions(lambda key: (jnp.zeros(()), jnp.zeros(1)), step, spec)


@pytest.mark.parametrize(("units", "q"), [("unit", 1.0), ("environment", 3.0)])
def test_value_estimates_of_evaluations(units, q):
    """Q is the action as seen by the critic, so it equals the reward in these units."""
    t = math.tanh(BIAS)
    cfg = Config("td3", 1, 1, (2,), critic_actions=units, action_low=(-3.0,), action_high=(3.0,))
    program = Program(cfg, [dataclasses.replace(FREE, discount=0.0)])
    obs = np.zeros((1, 1, 1), np.float32)
    state = program.init(obs, 1)._replace(agent=stack([hand_made(cfg)]))
    action, value = program.actions_and_values(state, obs)  # as in evaluations on the host
    assert float(action[0, 0, 0]) == pytest.approx(t)
    assert float(value[0, 0]) == pytest.approx(q * t)
    found = DeviceEvaluator(toy(), program, 2)(state)
    assert found.returns[0, 0] == pytest.approx(3 * t)
    assert found.value_bias[0] == pytest.approx((q - 3) * t, abs=1e-6)


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_bounds_of_one_change_nothing(algo):
    """Where the environment's bounds are ±1 the whole time step is the same program."""
    ones = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0)}

    def program(**fields: Any) -> str:
        cfg = setting(algo, hidden=(8,), warmup=10, **fields)
        own = Lane()
        obs, ends = jnp.zeros((1, 4)), jnp.zeros(1, bool)
        state = jax.eval_shape(lambda: lane.init(cfg, own, obs))
        after = TimeStep(obs, obs, jnp.zeros(1), ends, ends)
        step = lambda s, o, t: lane.step(s, o, t, cfg, config.hyper(cfg, own), learn=True)  # noqa: E731
        return jax.jit(step).lower(state, after, jnp.int32(1)).as_text()

    unit = program()
    assert program(**ones, critic_actions="environment") == unit
    assert program(critic_actions="environment") == unit  # bounds that are not known
    assert program(**{**BOX, "critic_actions": "unit"}) == unit
    assert program(**BOX) != unit


@pytest.mark.parametrize(
    ("env", "backend", "bound"),
    [
        ("InvertedPendulum-v5", "gymnasium", 3.0),
        ("Humanoid-v5", "gymnasium", 0.4),
        ("Humanoid-v3", "envpool", 0.4),
        ("Hopper-v5", "gymnasium", 1.0),
        ("rlx2_jax/Truncation-v0", "brax", None),
    ],
)
def test_presets_take_the_bounds_of_the_environment(env, backend, bound):
    if backend == "envpool":
        pytest.importorskip("envpool")
    settings = launch.Settings(env=env, env_backend=backend)
    spec = launch.env_spec(settings)
    expected = None if bound is None else (pytest.approx(bound),) * spec.action_dim
    assert spec.action_high == expected
    for preset, units in (("default", "unit"), ("paper", "unit"), ("reference", "environment")):
        own = dataclasses.replace(settings, preset=preset)
        cfg = launch.make_config(own, [Lane()], spec)
        assert cfg.critic_actions == units
        known = (spec.action_low, spec.action_high) if units == "environment" else (None, None)
        assert (cfg.action_low, cfg.action_high) == known
        scaled = units == "environment" and bound not in (None, 1.0)
        assert (cfg.critic_bounds is not None) == scaled
    cfg = launch.make_config(
        dataclasses.replace(settings, preset="reference", choices={"critic_actions": "unit"}),
        [Lane()],
        spec,
    )
    assert cfg.critic_actions == "unit" and cfg.action_low is None


def test_boxes_of_other_shapes():
    """The critic sees the action given to the environment, components in the same order."""
    low, high = np.array([[0.0, -0.4], [-2.0, 1.0]]), np.array([[4.0, 0.4], [-1.0, 1.0]])
    boxes = Boxes("task", Box(-1.0, 1.0, (3,)), Box(low, high, dtype=np.float64))
    spec = boxes.spec(None)
    assert spec == (3, 4, None, (0.0, -0.4, -2.0, 1.0), (4.0, 0.4, -1.0, 1.0))
    action = np.random.default_rng(0).uniform(-1, 1, (5, 4))
    bounds: Any = (spec.action_low, spec.action_high)
    seen = networks.critic_input(jnp.zeros((5, 1)), jnp.asarray(action), bounds)[:, 1:]
    np.testing.assert_allclose(seen, boxes.scale(action).reshape(5, 4), rtol=1e-6, atol=1e-7)


def test_runs_record_it_and_older_directories_lack_it(tmp_path):
    run = small_run()
    new = dataclasses.replace(
        run,
        config=dataclasses.replace(
            run.config, critic_actions="environment", action_low=(-3.0,), action_high=(3.0,)
        ),
    )
    files.write_json(tmp_path / "config.json", new.to_json())
    assert read_run(tmp_path) == new
    assert new.digest != run.digest
    older = run.to_json()
    later = ("critic_actions", "action_low", "action_high", "critics", "critic_subset")
    later += ("architecture", "width", "blocks", "topology", "precision")
    older["config"] = {k: v for k, v in older["config"].items() if k not in later}
    later = ("topology", "structure", "scope", "prune_start")
    older["lanes"] = [{k: v for k, v in x.items() if k not in later} for x in older["lanes"]]
    older = {k: v for k, v in older.items() if k not in ("shards", "parts", "first")}
    assert Run.from_json(older).config == run.config
    assert Run.from_json(older).digest == run.digest
    # What checkpoints of such a directory were marked with.
    assert run.digest == files.digest(files.to_json(older).encode())
    older["config"]["critic_actions"] = "metres"
    with pytest.raises(RunError, match=r"critic_actions='metres': use one of"):
        Run.from_json(older)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ((-1.0, -1.0), None, "give both"),
        ((-1.0,), (1.0,), "each of the 2 action components"),
        ((-1.0, 2.0), (1.0, 1.0), "low <= high"),
        ((-1.0, -1e39), (1.0, 1.0), "32-bit"),
        ((-1.0, math.nan), (1.0, 1.0), "critic_actions='unit'"),
    ],
)
def test_impossible_bounds(low, high, message):
    with pytest.raises(ValueError, match=message):
        setting("td3", action_low=low, action_high=high)
