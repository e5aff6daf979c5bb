"""Measures SBX's TD3 and SAC with the settings of rlx2_jax.

Runs in a separate virtual environment (see `benchmarks/peers/README.md`), so it imports
nothing from this project. Prints one JSON object on its last line.

    yes | head -5 | python sbx_peer.py updates --algo=td3      # gradient updates per second
    python sbx_peer.py steps   --algo=td3 --steps=6000     # environment steps per second
    python sbx_peer.py learn   --algo=td3 --steps=300000 --out=sbx.csv   # a learning curve
"""

import argparse
import csv
import json
import sys
import time

import gymnasium as gym
import numpy as np
import sbx
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise


def make_model(algo: str, env: gym.Env, seed: int, warmup: int, capacity: int):
    """An agent with the paper's hyper-parameters."""
    common = {
        "learning_rate": 3e-4,
        "buffer_size": capacity,
        "learning_starts": warmup,
        "batch_size": 256,
        "tau": 0.005,
        "gamma": 0.99,
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [256, 256]},
        "seed": seed,
    }
    if algo == "td3":
        size = env.action_space.shape[0]
        noise = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
        return sbx.TD3("MlpPolicy", env, action_noise=noise, policy_delay=2, **common)
    return sbx.SAC("MlpPolicy", env, ent_coef="auto_1.0", **common)


def fill(model, transitions: int) -> None:
    """Fills the replay buffer with random transitions, so that updates can be timed alone."""
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    for _ in range(transitions):
        obs = rng.normal(size=(2, 1, *buffer.obs_shape)).astype(np.float32)
        action = rng.uniform(-1, 1, size=(1, buffer.action_dim)).astype(np.float32)
        buffer.add(obs[0], obs[1], action, rng.normal(size=1), np.zeros(1), [{}])


def updates(args) -> dict:
    """Gradient updates per second of `model.train`, without the environment: one measurement per
    line on stdin, so that another program can alternate with this one."""
    model = make_model(args.algo, gym.make(args.env), 0, 0, 20_000)
    model.learn(2)  # sets up the logger and the schedules
    fill(model, 10_000)
    rates = []

    def measure() -> float:
        start = time.perf_counter()
        model.train(200, batch_size=256)
        np.asarray(next(iter(np.ravel(x) for x in _leaves(model))))  # waits for the device
        return 200 / (time.perf_counter() - start)

    measure(), measure()  # compiles
    print("ready", flush=True)
    for _ in sys.stdin:
        rates.append(measure())
        print(json.dumps({"updates_per_second": rates[-1]}), flush=True)
    return {"updates_per_second": float(np.median(rates))}


def _leaves(model):
    import jax

    return jax.tree.leaves(model.policy.actor_state.params)


def steps(args) -> dict:
    """Environment steps per second end to end, one update per step, no evaluation: `--steps` of
    them per line on stdin."""
    warmup = 1000
    model = make_model(args.algo, gym.make(args.env), 0, warmup, 100_000)
    model.learn(warmup + 500)
    rates = []
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        model.learn(args.steps, reset_num_timesteps=False)
        rates.append(args.steps / (time.perf_counter() - start))
        print(json.dumps({"steps_per_second": rates[-1]}), flush=True)
    return {"steps_per_second": float(np.median(rates))}


class _Evaluate(BaseCallback):
    """Every `interval` steps: 10 noise-free episodes with the same 10 seeds, as in rlx2_jax."""

    def __init__(self, env_id: str, interval: int, path: str):
        super().__init__()
        self.env, self.interval, self.path = gym.make(env_id), interval, path
        self.rows: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.interval == 0:
            returns = []
            for seed in range(10):
                obs, _ = self.env.reset(seed=1000 + seed)
                total, done = 0.0, False
                while not done:
                    action, _ = self.model.predict(obs, deterministic=True)
                    obs, reward, terminated, truncated, _ = self.env.step(action)
                    total, done = total + float(reward), terminated or truncated
                returns.append(total)
            self.rows.append((self.num_timesteps, float(np.mean(returns))))
            with open(self.path, "w", newline="") as file:
                csv.writer(file).writerows([("step", "mean_return"), *self.rows])
            print(*self.rows[-1], flush=True)
        return True


def learn(args) -> dict:
    """A whole training run with evaluations, written to `--out`."""
    env = gym.make(args.env)
    model = make_model(args.algo, env, args.seed, args.warmup, 1_000_000)
    callback = _Evaluate(args.env, 5000, args.out)
    model.learn(args.steps, callback=callback)
    last = [value for _, value in callback.rows[-30:]]
    return {"final_score": float(np.mean(last)), "evaluations": len(last)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("updates", "steps", "learn"))
    parser.add_argument("--algo", choices=("td3", "sac"), default="td3")
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--warmup", type=int, default=25_000)
    parser.add_argument("--out", default="sbx.csv")
    args = parser.parse_args()
    result = {"updates": updates, "steps": steps, "learn": learn}[args.mode](args)
    print(json.dumps({"peer": f"sbx {sbx.__version__}", "algo": args.algo, **result}))


if __name__ == "__main__":
    main()
