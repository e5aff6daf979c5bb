"""Finds the other processes of a run: the script of a subprocess of `hosts.meet`.

A process that is connected to JAX's coordinator is aborted, without an exception, if the others are
missing or lost, so the connection belongs to a process of its own. Prints one line of JSON.
"""

import json
import sys
import uuid
from typing import Any

import jax
from jax._src import distributed  # the key-value store has no public name


def meet(
    logdir: str, coordinator: str | None, count: int | None, index: int | None, seconds: int
) -> dict[str, Any]:
    """This process's place, and the session and run directory of process 0."""
    try:
        jax.distributed.initialize(coordinator, count, index, initialization_timeout=seconds)
    except (ValueError, TypeError) as error:
        return {"error": str(error)}
    state = distributed.global_state
    assert state.client is not None
    index, count = state.process_id, int(state.num_processes or 1)
    if index == 0:
        state.client.key_value_set("rlx2/session", f"{uuid.uuid4().hex} {logdir}")
    message = state.client.blocking_key_value_get("rlx2/session", 1000 * seconds)
    jax.distributed.shutdown()  # waits for all processes
    session, _, agreed = message.partition(" ")
    return {"index": index, "count": count, "session": session, "logdir": agreed}


if __name__ == "__main__":
    print(json.dumps(meet(*json.loads(sys.argv[1]))))
