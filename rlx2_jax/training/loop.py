"""What the training loops have in common: all lanes of a chunk, in groups.

A loop advances its lanes to a given time, and lets them be evaluated, inspected, saved and restored
in between. What a lane computes does not depend on which others are trained with it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.training import plan
from rlx2_jax.training.evaluate import DeviceEvaluator, Evaluation, HostEvaluator
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.lane_group import Group, explain
from rlx2_jax.training.program import networks_of
from rlx2_jax.training.snapshot import Snapshot
from rlx2_jax.training.weights import Weights

Stop = Callable[[], bool]
Evaluator = HostEvaluator | DeviceEvaluator


class Loop:
    """All lanes of a chunk.

    Attributes:
      time: time steps that all groups have taken.
      lanes: the positions of each group's lanes in the chunk.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        lanes: list[list[int]],
        make_evaluators: Callable[[], list[Evaluator]],
        episodes: int,
    ):
        self.time = 0
        self.lanes = lanes
        self._groups = groups
        self._make_evaluators, self._episodes = make_evaluators, episodes
        self._evaluators: list[Evaluator] = []

    def advance(self, until: int, stop: Stop) -> None:
        """Takes all lanes to time `until`, or to one before it where `stop()` was true."""
        raise NotImplementedError

    def snapshots(self) -> list[Snapshot]:
        """What a checkpoint saves, of each group: the same groups on any number of devices."""
        raise NotImplementedError

    def restore(self, snapshots: list[Snapshot], exact: bool) -> None:
        """Continues from `snapshots`; unless `exact`, with new episodes where there are any."""
        raise NotImplementedError

    @property
    def exact_restore(self) -> bool:
        """Whether environments continue from a snapshot where they were."""
        return True

    def evaluate(self, stop: Stop = lambda: False) -> Evaluation:
        """All lanes' evaluation; on the host, groups in parallel.

        Raises:
          Interrupted: `stop()` became true on the way.
          LaneFailure: an environment raised.
        """
        envs = self._groups[0].program.config.num_envs
        when = f"evaluation at step {self.time * envs}"

        def one(group: Group, evaluator: Evaluator) -> Evaluation:
            try:
                return evaluator(group.state, stop)
            except EnvironmentFailure as failure:
                raise explain(failure, group.program.lanes, self._episodes, when) from failure

        try:
            self._evaluators = self._evaluators or self._make_evaluators()
        except EnvironmentFailure as failure:
            lanes = self._groups[0].program.lanes
            raise explain(failure, lanes, self._episodes, when) from failure
        if isinstance(self._evaluators[0], HostEvaluator):
            with ThreadPoolExecutor(len(self._groups)) as threads:
                found = list(threads.map(one, self._groups, self._evaluators))
        else:
            found = list(map(one, self._groups, self._evaluators))
        back = _back(self.lanes)
        return Evaluation(*(np.concatenate(field)[back] for field in zip(*found)))

    def report(self) -> list[dict[str, Any]]:
        """One row of metrics for each lane."""
        rows = [row for group in self._groups for row in group.report()]
        return [rows[i] for i in _back(self.lanes)]

    def states(self) -> list[LaneState]:
        """Of each group."""
        return [group.state for group in self._groups]

    def close(self) -> None:
        """Gives back what the loop holds outside of the process's memory."""
        for evaluator in self._evaluators:
            evaluator.close()


def networks(loop: Loop) -> list[dict[str, Weights]]:
    """The networks of every lane, in the lanes' order."""
    found = [x for state in loop.states() for x in networks_of(state.agent)]
    return [found[i] for i in _back(loop.lanes)]


def chosen(parts: list[plan.Part], only: Sequence[int] | None) -> list[plan.Part]:
    """The parts that have a lane of `only`."""
    return parts if only is None else [part for part in parts if {*only} & {*part.lanes}]


def _back(lanes: list[list[int]]) -> np.ndarray:
    """Where each lane is found among the lanes of all groups."""
    return np.argsort(np.concatenate(lanes))
