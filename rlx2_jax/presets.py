"""The paper's sparsities of actor and critics (table 2), by algorithm and task."""

import re

PAPER_SPARSITIES = {
    "td3": {
        "HalfCheetah": (0.90, 0.85),
        "Hopper": (0.98, 0.95),
        "Walker2d": (0.97, 0.95),
        "Ant": (0.96, 0.88),
    },
    "sac": {
        "HalfCheetah": (0.90, 0.80),
        "Hopper": (0.98, 0.95),
        "Walker2d": (0.90, 0.90),
        "Ant": (0.90, 0.75),
    },
}


def task_name(env: str) -> str:
    """An environment's name without its version (-v3 in the paper, mostly -v5 here)."""
    return re.sub(r"-v\d+$", "", env)


def paper_sparsities(algo: str, env: str) -> dict[str, float]:
    """The paper's actor and critic sparsity for an environment of any version.

    Raises:
      ValueError: the paper has none for it.
    """
    if algo not in PAPER_SPARSITIES:
        raise ValueError(
            f"--paper_sparsity: the paper has no sparsities for {algo}; it has "
            f"{', '.join(PAPER_SPARSITIES)}. Give --actor_sparsity and --critic_sparsity instead"
        )
    tasks = PAPER_SPARSITIES[algo]
    if task_name(env) not in tasks:
        raise ValueError(
            f"--paper_sparsity: the paper has no sparsities for {env}; it has {', '.join(tasks)}. "
            f"Give --actor_sparsity and --critic_sparsity instead"
        )
    actor, critic = tasks[task_name(env)]
    return {"actor_sparsity": actor, "critic_sparsity": critic}
