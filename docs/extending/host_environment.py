"""A host environment: any Gymnasium environment with array observations and bounded actions.

rlx2 train --env=host_environment:Reach-v0 --steps=20000
"""

import tempfile

import gymnasium
import numpy as np

import rlx2_jax as rlx2


class Reach(gymnasium.Env):
    """Push a point in the plane to the origin."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-0.5, 0.5, (2,), np.float32)  # scaled from [-1, 1]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.x.copy(), {}

    def step(self, action):
        self.x = np.clip(self.x + 0.2 * action, -2, 2).astype(np.float32)
        distance = float(np.linalg.norm(self.x))
        return self.x.copy(), -distance, distance < 0.02, False, {}


gymnasium.register("Reach-v0", lambda **_: Reach(), max_episode_steps=20)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        summary = rlx2.train(
            "Reach-v0", logdir=folder, steps=60, warmup=20, hidden=(8, 8), batch_size=8,
            eval_interval=60, episodes=1, progress=False, say=print,
        )  # fmt: skip
    print([lane["final_score"] for lane in summary["lanes"]])
