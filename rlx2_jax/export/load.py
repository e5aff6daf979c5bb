"""Trained policies as callables."""

from pathlib import Path

from rlx2_jax.export import folder, npz
from rlx2_jax.export.actor import actor_of, policy_of, read_run
from rlx2_jax.export.policy import SparsePolicy


def load_policy(path: str | Path, lane: int = 0, *, allow_imports: bool = False) -> SparsePolicy:
    """The policy of a trained lane: `policy(obs)` returns noise-free actions in [-1, 1].

    Args:
      path: a run directory (finished or still running), a published policy's folder, or an
        exported `.npz` file.
      lane: which lane of a run.
      allow_imports: whether the directory's environment may import a module.

    Returns:
      A callable in plain NumPy: observations [..., obs] to f32[..., act]. `policy.scale(action)`
      maps actions to the task's bounds, if known.

    >>> import numpy as np
    >>> import rlx2_jax as rlx2
    >>> from rlx2_jax import export
    >>> layer = {"kernel": np.ones((3, 1)), "bias": np.zeros(1)}
    >>> live = {"kernel": np.ones((3, 1), bool), "bias": np.ones(1, bool)}
    >>> policy = export.from_actor({"Dense_0": layer}, {"Dense_0": live}, "td3")
    >>> policy(np.zeros(3))  # what load_policy("runs/hopper", lane=0) gives for a trained run
    array([0.], dtype=float32)
    """
    path = Path(path)
    if path.is_file():
        return npz.load(path)
    if (path / folder.RECORD).exists():
        return folder.read(path, allow_imports=allow_imports).policy
    run = read_run(path, allow_imports=allow_imports)
    actor = actor_of(run, path, lane)
    return policy_of(actor, run.config)
