"""The timed updates of benchmarks: lanes learn in groups, and update counts are right."""

import jax
import numpy as np
import pytest

from benchmarks import update_benchmark

pytestmark = pytest.mark.fast


def test_lanes_learn_as_often_as_they_say():
    made = update_benchmark.program("td3", 2, hidden=(8, 8), capacity=2000, n=1, updates=3)
    timed = update_benchmark.Scanned(made)
    assert timed.updates == 3 and made.config.n_max == 1
    before = [jax.device_get(state.agent.critic) for state in timed._states]
    assert timed() > 0
    after = [jax.device_get(state.agent.critic) for state in timed._states]
    assert sum(np.size(critic.moments.count) for critic in after) == 2  # one for each lane
    for old, new in zip(before, after):
        np.testing.assert_array_equal(new.moments.count, old.moments.count + 3)
        changed = jax.tree.map(lambda a, b: (a != b).any(), old.params, new.params)
        assert any(jax.tree.leaves(changed))
