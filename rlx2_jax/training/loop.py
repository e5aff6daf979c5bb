"""The base class of training loops: all lanes of a chunk, in groups.

A loop advances its lanes to a given time, and evaluates, reports, saves and restores them in
between. A lane's results do not depend on which other lanes are trained with it.
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
        """Advances all lanes to time `until`, or to an earlier time once `stop()` is true."""
        raise NotImplementedError

    def snapshots(self) -> list[Snapshot]:
        """The checkpoint contents of each group; groups are the same on any number of devices."""
        raise NotImplementedError

    def restore(self, snapshots: list[Snapshot], exact: bool) -> None:
        """Continues from `snapshots`; starts new episodes unless `exact`."""
        raise NotImplementedError

    @property
    def exact_restore(self) -> bool:
        """Whether environments can continue exactly from a snapshot."""
        return True

    def evaluate(self, stop: Stop = lambda: False) -> Evaluation:
        """Evaluates all lanes; on the host, groups run in parallel.

        Raises:
          Interrupted: `stop()` became true during the evaluation.
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
                results = list(threads.map(one, self._groups, self._evaluators))
        else:
            results = list(map(one, self._groups, self._evaluators))
        order = _lane_order(self.lanes)
        return Evaluation(*(np.concatenate(field)[order] for field in zip(*results)))

    def report(self) -> list[dict[str, Any]]:
        """One row of metrics for each lane."""
        rows = [row for group in self._groups for row in group.report()]
        return [rows[i] for i in _lane_order(self.lanes)]

    def states(self) -> list[LaneState]:
        """The state of each group."""
        return [group.state for group in self._groups]

    def close(self) -> None:
        """Closes environments and evaluators."""
        for evaluator in self._evaluators:
            evaluator.close()


def networks(loop: Loop) -> list[dict[str, Weights]]:
    """The networks of every lane, in the lanes' order."""
    nets = [x for state in loop.states() for x in networks_of(state.agent)]
    return [nets[i] for i in _lane_order(loop.lanes)]


def chosen(parts: list[plan.Part], only: Sequence[int] | None) -> list[plan.Part]:
    """The parts that contain a lane of `only`."""
    return parts if only is None else [part for part in parts if {*only} & {*part.lanes}]


def _lane_order(lanes: list[list[int]]) -> np.ndarray:
    """Each lane's position in the concatenated groups."""
    return np.argsort(np.concatenate(lanes))
