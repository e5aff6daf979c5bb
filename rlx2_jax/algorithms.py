"""Each algorithm's use of networks, for configurations, accounting and agents."""

from typing import NamedTuple


class NetworkUse(NamedTuple):
    """How an algorithm sizes, initializes and evaluates its networks (tables 4 and 5).

    Attributes:
      actor_heads: actor outputs per action dimension; SAC has a mean and a log σ.
      weight_init: `uniform` or `orthogonal`, see `networks.mlp.MLP`.
      actor_copies: 2 if the actor has a target network, else 1.
      actor_loss_critics: critics evaluated in the actor's loss; None: all of them.
      target_every_step: whether n-step targets evaluate the actor at each of the n states.
      n_step, policy_delay: the paper's n and d.
      expert: whether it can learn from an expert, by its Q (RigL+Q*) or its actions.
      critic: the architecture of the critics; None: `Config.architecture`.
      maximizes_mean: whether the actor maximizes the mean of the critics instead of their minimum.
      has_critic: False if there is only an actor.
      offline: whether it learns from demonstrations in replay, without environment steps.
    """

    actor_heads: int
    weight_init: str
    actor_copies: int
    actor_loss_critics: int | None
    target_every_step: bool
    n_step: int
    policy_delay: int
    expert: bool = False
    critic: str | None = None
    maximizes_mean: bool = False
    has_critic: bool = True
    offline: bool = False


# By name; `agents.register_algorithm` adds to it.
NETWORK_USE = {
    "td3": NetworkUse(1, "uniform", 2, 1, False, n_step=3, policy_delay=2, expert=True),
    "sac": NetworkUse(2, "orthogonal", 1, None, True, n_step=2, policy_delay=1),
    "bc": NetworkUse(
        1,
        "uniform",
        1,
        0,
        False,
        n_step=1,
        policy_delay=1,
        expert=True,
        has_critic=False,
        offline=True,
    ),
}
