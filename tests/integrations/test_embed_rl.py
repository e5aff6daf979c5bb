"""`sparsify` in other RL libraries: exact links in actor, critics and targets, and it still learns.

The task: observations are drawn afresh at every step, and the reward is 2 minus the distance of the
action from the first of them. A policy that ignores them earns at most 1.5 a step, the best 2.
"""

from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from embedding import check_links, row
from flax.training.train_state import TrainState

import rlx2_jax as rlx2

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTH, SPARSITY = 8, 0.75
PLAN: dict[str, Any] = {"interval": 50, "t_end": 600}


@pytest.fixture(autouse=True)
def _broadcasting():
    with jax.numpy_rank_promotion("allow"):
        yield


class Follow(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        reward = 2.0 - abs(float(action[0]) - float(self.obs[0]))
        self.steps += 1
        return self._draw(), reward, False, self.steps >= LENGTH, {}

    def _draw(self) -> Any:
        self.obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.obs


def average(policy: Any, steps: int = 200) -> float:
    """The policy's mean reward."""
    env = Follow()
    obs, _ = env.reset(seed=0)
    total = 0.0
    for _ in range(steps):
        obs, reward, _, ended, _ = env.step(policy(obs))
        total += reward
        obs = env.reset()[0] if ended else obs
    return total / steps


def sparse_adam(learning_rate: Any, **_: Any) -> Any:
    return rlx2.sparsify(optax.adam(learning_rate), SPARSITY, **PLAN)


def masked(state: Any) -> Any:
    return state.replace(target_params=rlx2.mask(state.target_params, state.opt_state))


OPTIONS: dict[str, Any] = {
    "learning_rate": 3e-3,
    "learning_starts": 100,
    "batch_size": 64,
    "gamma": 0.5,
    "policy_kwargs": {"net_arch": [32, 32], "optimizer_class": sparse_adam},
    "seed": 0,
}


def check_sbx(model: Any) -> None:
    before = average(lambda obs: model.predict(obs, deterministic=True)[0])
    model.learn(900)  # the last update of the TD3 actor is a mask update
    after = average(lambda obs: model.predict(obs, deterministic=True)[0])
    assert after > 1.75 > before, (before, after)
    for state in (model.policy.actor_state, model.policy.qf_state):
        check_links(state.params, state.opt_state)
        if hasattr(state, "target_params"):
            check_links(state.target_params, state.opt_state)


@row(
    "RL libraries",
    "SBX TD3",
    "`optimizer_class` of `policy_kwargs`; `soft_update`, `update_actor` mask targets",
)
def test_sbx_td3():
    sbx = pytest.importorskip("sbx")

    class SparseTD3(sbx.TD3):
        @staticmethod
        @jax.jit
        def soft_update(tau: Any, qf_state: Any, actor_state: Any) -> Any:
            states = sbx.TD3.soft_update(tau, qf_state, actor_state)
            return tuple(map(masked, states))

        @staticmethod
        @jax.jit
        def update_actor(*args: Any) -> Any:  # runs after soft_update and may change masks
            actor_state, *rest = sbx.TD3.update_actor(*args)
            return masked(actor_state), *rest

    check_sbx(SparseTD3("MlpPolicy", Follow(), **OPTIONS))


@row("RL libraries", "SBX SAC", "`optimizer_class` of `policy_kwargs`; `soft_update` masks targets")
def test_sbx_sac():
    sbx = pytest.importorskip("sbx")

    class SparseSAC(sbx.SAC):
        @staticmethod
        @jax.jit
        def soft_update(tau: Any, qf_state: Any) -> Any:
            return masked(sbx.SAC.soft_update(tau, qf_state))

    check_sbx(SparseSAC("MlpPolicy", Follow(), **OPTIONS))


@row("RL libraries", "rejax TD3", "`TrainState.create(tx=sparsify(...))`, targets masked")
def test_rejax_td3():
    rejax = pytest.importorskip("rejax")
    spaces = pytest.importorskip("gymnax.environments.spaces")

    class Limits(NamedTuple):
        max_steps_in_episode: int = LENGTH

    class JaxFollow:
        default_params = Limits()

        def reset(self, key: Any, params: Any) -> Any:
            obs = jax.random.uniform(key, (3,), minval=-1.0)
            return obs, (obs, jnp.zeros((), jnp.int32))

        def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            obs, steps = state
            reward = 2.0 - jnp.abs(jnp.ravel(action)[0] - obs[0])
            obs = jax.random.uniform(key, (3,), minval=-1.0)
            done = steps + 1 >= LENGTH
            return obs, (obs, jnp.where(done, 0, steps + 1)), reward, done, {}

        def observation_space(self, params: Any) -> Any:
            return spaces.Box(-1.0, 1.0, (3,))

        def action_space(self, params: Any) -> Any:
            return spaces.Box(-1.0, 1.0, (1,))

    class SparseTD3(rejax.TD3):
        def train_policy(self, ts: Any, minibatches: Any, old_global_step: Any) -> Any:
            ts = super().train_policy(ts, minibatches, old_global_step)
            return ts.replace(
                actor_target_params=rlx2.mask(ts.actor_target_params, ts.actor_ts.opt_state),
                critic_target_params=rlx2.mask(ts.critic_target_params, ts.critic_ts.opt_state),
            )

    algo = SparseTD3.create(
        env=JaxFollow(),
        total_timesteps=1200,
        eval_freq=1200,
        fill_buffer=100,
        buffer_size=2000,
        batch_size=64,
        gamma=0.5,
        learning_rate=3e-3,
        skip_initial_evaluation=True,
    )
    ts = algo.init_state(jax.random.key(0))
    for name in ("actor_ts", "critic_ts"):
        params = getattr(ts, name).params
        tx = sparse_adam(algo.learning_rate)
        ts = ts.replace(**{name: TrainState.create(apply_fn=lambda: None, params=params, tx=tx)})
    ts, _ = jax.jit(lambda ts: algo.train(train_state=ts))(ts)
    act = jax.jit(algo.make_act(ts))
    assert average(lambda obs: np.ravel(act(obs, jax.random.key(0)))) > 1.75
    for name in ("actor", "critic"):
        state = getattr(ts, f"{name}_ts")
        check_links(state.params, state.opt_state)
        check_links(getattr(ts, f"{name}_target_params"), state.opt_state)
