"""RLx2-TD3 in one file (Algorithm 4 of the paper), without the package.

python examples/rlx2_td3.py --env=Hopper-v5 --actor_sparsity=0.98 --critic_sparsity=0.95
python examples/rlx2_td3.py --steps=20000 --warmup=1000 --hidden=64,64 --batch_size=128 \
    --learning_rate=1e-3 --tau=0.01 --mask_interval=200 --t0=2000 --b_max=20000 --b_min=5000 \
    --buffer_interval=1000 --eval_interval=2500

Needs jax, optax, gymnasium and numpy. Equations, algorithms and sections are those of the paper:
"RLx2: Training a Sparse Deep Reinforcement Learning Model from Scratch", ICLR 2023. Actions are in
[-1, 1] everywhere. Given the same networks and data, this file and `rlx2_jax` compute the same
parameters (tests/docs/test_single_file.py).
"""

import argparse
import dataclasses
import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax


@dataclasses.dataclass(frozen=True)
class Args:
    """Defaults are the paper's (appendix C.2)."""

    env: str = "InvertedPendulum-v5"
    seed: int = 0
    steps: int = 3_000_000
    warmup: int = 25_000  # steps with random actions and without updates
    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    learning_rate: float = 3e-4
    discount: float = 0.99  # γ
    tau: float = 0.005  # τ
    policy_delay: int = 2  # d
    exploration_noise: float = 0.1  # σ
    target_noise: float = 0.2  # σ̃
    target_noise_clip: float = 0.5  # c
    actor_sparsity: float = 0.9  # S_φ
    critic_sparsity: float = 0.85  # S_θ
    mask_interval: int = 10_000  # Δ_m, in updates of each network
    zeta0: float = 0.5  # ζ_0, the initial share of links to replace
    t_end: int = 0  # T_end, in critic updates; 0: the whole run
    n: int = 3  # N, steps of the targets
    t0: int = 300_000  # T_0, updates before targets become multi-step
    b_max: int = 1_000_000  # bounds of the replay buffer
    b_min: int = 100_000
    buffer_interval: int = 10_000  # Δ_b, steps between checks of the buffer
    d0: float = 0.2  # D_0, the policy distance above which old transitions are removed
    trim_ratio: float = 0.1  # ρ, the share removed
    oldest: int = 2048  # K, the number of transitions compared with the policy
    eval_interval: int = 5000
    episodes: int = 10


# Networks: ReLU layers with a mask per weight matrix, a target and Adam's moments.


class Network(NamedTuple):
    params: Any  # [{"w": [in, out], "b": [out]}, ...]; critics have a leading axis of two
    masks: Any  # booleans in the same tree, all ones on biases
    target: Any
    adam: Any  # moments


adam = optax.scale_by_adam()


def densities(shapes: list[tuple[int, int]], sparsity: float) -> list[float]:
    """Erdős–Rényi (appendix B): 1 - S_l = k (I_l + O_l) / (I_l O_l), with k such that
    the network has sparsity S. Layers that would need more links than positions are dense."""
    raw = np.array([(i + o) / (i * o) for i, o in shapes])
    size = np.array([i * o for i, o in shapes])
    dense = np.zeros(len(shapes), bool)
    while not dense.all():
        budget = (1 - sparsity) * size.sum() - size[dense].sum()
        k = budget / (raw * size)[~dense].sum()
        if k * raw[~dense].max() <= 1:
            return list(np.where(dense, 1.0, k * raw))
        dense |= raw == raw[~dense].max()
    return [1.0] * len(shapes)


def init_layers(rng: np.random.Generator, sizes: tuple[int, ...], sparsity: float):
    """Weights and biases U(-1/√in, 1/√in) under random masks."""
    params, masks, shapes = [], [], list(pairwise(sizes))
    for (i, o), density in zip(shapes, densities(shapes, sparsity)):
        links = i * o - int((1 - density) * i * o)
        mask = (rng.permutation(i * o) < links).reshape(i, o)
        w, b = (rng.uniform(-1, 1, shape) / math.sqrt(i) for shape in ((i, o), (o,)))
        params.append({"w": np.float32(w * mask), "b": np.float32(b)})
        masks.append({"w": mask, "b": np.ones(o, bool)})
    return params, masks


def init(args: Args, obs_dim: int, action_dim: int) -> tuple[Network, Network]:
    """The actor π_φ, and the critics Q_θ1 and Q_θ2 (Algorithm 4, lines 1-3)."""
    rng = np.random.default_rng(args.seed)
    actor = init_layers(rng, (obs_dim, *args.hidden, action_dim), args.actor_sparsity)
    sizes = (obs_dim + action_dim, *args.hidden, 1)
    pair = [init_layers(rng, sizes, args.critic_sparsity) for _ in range(2)]
    critic = jax.tree.map(lambda *x: np.stack(x), *pair)
    networks = []
    for params, masks in (actor, critic):
        params, masks = jax.tree.map(jnp.asarray, (params, masks))
        networks.append(Network(params, masks, params, adam.init(params)))
    return networks[0], networks[1]


def mlp(params: Any, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


@jax.jit
def policy(params: Any, obs: jax.Array) -> jax.Array:
    """π(s; φ), without noise."""
    return jnp.tanh(mlp(params, obs))


def q_values(params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """Q_θ1 and Q_θ2: [2, batch]."""
    x = jnp.concatenate([obs, action], axis=-1)
    return jax.vmap(mlp, in_axes=(0, None))(params, x)[..., 0]


# The replay buffer with dynamic capacity (Algorithm 3).


class Batch(NamedTuple):
    obs: Any  # [batch, obs]
    action: Any  # [batch, act]
    reward: Any  # [batch, n], and so on for n consecutive steps
    next_obs: Any  # [batch, n, obs]
    terminated: Any
    truncated: Any


class ReplayBuffer:
    """A ring buffer. `written` counts all transitions added; the newest `length` are valid."""

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        self.args, self.written, self.length = args, 0, 0
        rows = min(args.b_max, args.steps)
        self.obs, self.next_obs = np.zeros((2, rows, obs_dim), np.float32)
        self.action, self.mean = np.zeros((2, rows, action_dim), np.float32)
        self.reward = np.zeros(rows, np.float32)
        self.terminated, self.truncated = np.zeros((2, rows), bool)

    def add(self, **transition: Any) -> None:
        """`mean` is the action without exploration noise."""
        for name, value in transition.items():
            getattr(self, name)[self.written % len(self.reward)] = value
        self.written += 1
        self.length = min(self.length + 1, len(self.reward))

    def rows(self, position: np.ndarray) -> np.ndarray:
        """Rows of transitions, given their positions counted from the oldest."""
        return (self.written - self.length + position) % len(self.reward)

    def windows(self, start: np.ndarray, n: int) -> Batch:
        """n consecutive transitions from each start, counted from the oldest."""
        i = self.rows(start[:, None] + np.arange(n))
        ends = self.terminated[i], self.truncated[i]
        return Batch(
            self.obs[i[:, 0]], self.action[i[:, 0]], self.reward[i], self.next_obs[i], *ends
        )

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        return self.windows(rng.integers(0, self.length - n + 1, self.args.batch_size), n)

    def distance(self, actor: Any) -> float:
        """D(B, φ) of the oldest K transitions (equation 6; half the mean squared difference, for
        which D_0 was tuned)."""
        i = self.rows(np.arange(min(self.args.oldest, self.length)))
        return float(0.5 * np.mean((np.asarray(policy(actor, self.obs[i])) - self.mean[i]) ** 2))

    def trim(self, actor: Any) -> None:
        """Removes the oldest share ρ if the policy has moved away from it (lines 11-18)."""
        if self.distance(actor) > self.args.d0:
            forget = int(self.args.trim_ratio * self.length)
            self.length -= max(min(forget, self.length - self.args.b_min), 0)


# Learning (Algorithm 4, lines 10-24).


def targets(actor: Any, critic: Any, batch: Batch, noise: jax.Array, args: Args) -> jax.Array:
    """y = Σ_{k<m} γ^k r_{t+k} + γ^m min_j Q_θ'j(s_{t+m}, ã), where m <= n is smaller if the
    episode ends within the window (lines 11-13): [batch]. A terminal state has value 0."""
    n = batch.reward.shape[1]
    ends = batch.terminated | batch.truncated
    inside = jnp.cumsum(ends, axis=1) - ends == 0  # no end before this step
    m = inside.sum(axis=1)
    rewards = jnp.sum(inside * args.discount ** np.arange(n) * batch.reward, axis=1)
    row = jnp.arange(len(m))
    last_obs, terminated = batch.next_obs[row, m - 1], batch.terminated[row, m - 1]
    noise = jnp.clip(args.target_noise * noise, -args.target_noise_clip, args.target_noise_clip)
    action = jnp.clip(policy(actor, last_obs) + noise, -1, 1)
    q = q_values(critic, last_obs, action).min(axis=0)
    return rewards + args.discount**m * ~terminated * q


@partial(jax.jit, static_argnames="args")
def critic_gradient(actor: Network, critic: Network, batch: Batch, key: jax.Array, args: Args):
    """∇_θ of Σ_j 1/B Σ_i (y_i - Q_θj(s_i, a_i))² (line 14), including absent links."""
    noise = jax.random.normal(key, batch.action.shape, batch.action.dtype)
    y = targets(actor.target, critic.target, batch, noise, args)

    def loss(params: Any) -> jax.Array:
        return jnp.sum(jnp.mean((q_values(params, batch.obs, batch.action) - y) ** 2, axis=1))

    return jax.grad(loss)(critic.params)


@jax.jit
def actor_gradient(actor: Network, critic: Network, batch: Batch):
    """∇_φ of -1/B Σ_i Q_θ1(s_i, π_φ(s_i)) (line 20), including absent links."""

    def loss(params: Any) -> jax.Array:
        return -jnp.mean(q_values(critic.params, batch.obs, policy(params, batch.obs))[0])

    return jax.grad(loss)(actor.params)


@partial(jax.jit, static_argnames="args")
def adam_step(network: Network, gradient: Any, args: Args) -> Network:
    """Adam on the live links."""
    gradient = jax.tree.map(jnp.multiply, gradient, network.masks)
    step, moments = adam.update(gradient, network.adam)
    params = jax.tree.map(lambda p, s: p - args.learning_rate * s, network.params, step)
    params = jax.tree.map(jnp.multiply, params, network.masks)
    return network._replace(params=params, adam=moments)


@partial(jax.jit, static_argnames="args")
def polyak(network: Network, args: Args) -> Network:
    """θ' ← τ θ + (1 - τ) θ' on the live links (line 23)."""
    mix = lambda p, t, m: (args.tau * p + (1 - args.tau) * t) * m  # noqa: E731
    return network._replace(target=jax.tree.map(mix, *network[::2], network.masks))


def largest(score: np.ndarray, k: int) -> np.ndarray:
    """A mask of the k largest scores; ties go to the first."""
    chosen = np.zeros(score.size, bool)
    chosen[np.argsort(-score, axis=None, kind="stable")[:k]] = True
    return chosen.reshape(score.shape)


def drop_and_grow(network: Network, gradient: Any, zeta: float) -> Network:
    """Topology evolution (Algorithm 1): every layer drops its k = ⌊ζ · links⌋ links of smallest |θ|
    and grows links at the k free positions of largest |∇_θ L|. New links start with zero weight,
    target and moments; a link that is dropped and regrown at once keeps its values."""
    network = jax.tree.map(np.array, network)
    trees = network.params, network.target, network.adam.mu, network.adam.nu
    for i, layer in enumerate(gradient):
        for j in np.ndindex(layer["w"].shape[:-2]):  # each critic
            mask, size = network.masks[i]["w"][j], np.abs(np.asarray(layer["w"])[j])
            weight, *others = (tree[i]["w"][j] for tree in trees)
            k = int(zeta * mask.sum())
            kept = largest(np.where(mask, np.abs(weight), -1), mask.sum() - k)
            grown = kept | largest(np.where(kept, -1, size), k)
            for values in (weight, *others):
                values *= mask & grown
            mask[...] = grown
    return jax.tree.map(jnp.asarray, network)


def update(
    actor: Network, critic: Network, batch: Batch, key: jax.Array, count: int, args: Args
) -> tuple[Network, Network]:
    """Gradient update `count`, from 1."""

    def learn(network: Network, gradient: Any, t: int, t_end: int) -> Network:
        if t % args.mask_interval or t >= t_end:
            return adam_step(network, gradient, args)
        zeta = args.zeta0 / 2 * (1 + math.cos(math.pi * t / t_end))
        return drop_and_grow(network, gradient, zeta)  # in place of the optimizer's step

    d, t_end = args.policy_delay, args.t_end or args.steps - args.warmup
    critic = learn(critic, critic_gradient(actor, critic, batch, key, args), count, t_end)
    if count % d == 0:
        actor = learn(actor, actor_gradient(actor, critic, batch), count // d, t_end // d)
        actor, critic = polyak(actor, args), polyak(critic, args)
    return actor, critic


def evaluate(env: gym.Env, actor: Network, episodes: int) -> float:
    """Mean return without noise, always from the same initial states."""
    total = 0.0
    for seed in range(episodes):
        obs, done = env.reset(seed=seed)[0], False
        while not done:
            action = np.asarray(policy(actor.params, np.float32(obs)))
            obs, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
    return total / episodes


def train(args: Args) -> list[tuple[int, float]]:
    """Algorithm 4; returns steps and returns of all evaluations."""
    low, high = np.float32(-1), np.float32(1)
    env, test_env = (gym.wrappers.RescaleAction(gym.make(args.env), low, high) for _ in range(2))
    obs, _ = env.reset(seed=args.seed)
    obs_dim, action_dim = len(obs), len(env.action_space.sample())
    actor, critic = init(args, obs_dim, action_dim)
    buffer = ReplayBuffer(args, obs_dim, action_dim)
    rng, key, scores = np.random.default_rng(args.seed), jax.random.key(args.seed), []
    for step in range(1, args.steps + 1):
        if step <= args.warmup:
            mean = action = np.float32(rng.uniform(-1, 1, action_dim))
        else:
            mean = np.asarray(policy(actor.params, np.float32(obs)))
            noise = args.exploration_noise * rng.normal(size=action_dim)
            action = np.clip(mean + noise, -1, 1).astype(np.float32)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.add(
            obs=obs, action=action, mean=mean, reward=reward, next_obs=next_obs,
            terminated=terminated, truncated=truncated,
        )  # fmt: skip
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step % args.buffer_interval == 0:
            buffer.trim(actor.params)
        if (count := step - args.warmup) > 0:
            n = 1 if count < args.t0 else args.n  # the delay of multi-step targets (section 4.2.1)
            batch = buffer.sample(rng, n)
            actor, critic = update(
                actor, critic, batch, jax.random.fold_in(key, count), count, args
            )
        if step % args.eval_interval == 0:
            scores.append((step, evaluate(test_env, actor, args.episodes)))
            print(
                f"step {step:,}  return {scores[-1][1]:.1f}  buffer {buffer.length:,}", flush=True
            )
    return scores


def main() -> None:
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Args):
        default = field.default
        sizes = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
        kind = sizes if field.name == "hidden" else type(default)
        parser.add_argument(f"--{field.name}", type=kind, default=default)
    train(Args(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
