"""Checks the placement of `sparsify` among other optax transformations.

Its updates take parameters exactly onto the mask. A transformation that changes them afterwards (a
later member of a chain, or `lookahead` or `schedule_free` around it) would silently leave
parameters off the mask. Optax does not tell a transformation what encloses it, so `check` inspects
the Python stack while the update is traced.
"""

import sys
from pathlib import Path

import optax

_OPTAX = str(Path(optax.__file__).parent)
# Optax modules that pass updates through unchanged, or drop them entirely (except for
# conditionally_transform, which passes the gradients through where it skips an update).
_TRANSPARENT = (
    "base.py",
    "_accumulation.py",
    "_combining.py",
    "_conditionality.py",
    "_inject.py",
    "_layouts.py",
    "_masking.py",
)


def check() -> None:
    """Raises if a calling optax function would change the updates afterwards."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OPTAX):
            after = None
            transparent = Path(code.co_filename).name in _TRANSPARENT
            if not transparent or code.co_qualname.startswith("conditionally_transform."):
                after = code.co_qualname.partition(".")[0]
            elif code.co_qualname.startswith(("chain.", "named_chain.")):
                known = frame.f_locals
                members = known.get("update_fns", known.get("transforms", ()))
                later = len(known.get("new_state", ())) + 1 < len(members)
                after = "a later member of the chain" if later else None
            if after is not None:
                raise ValueError(
                    f"{after} would change sparsify's updates and leave parameters off the mask: "
                    "put sparsify around it, or last in the chain. Or use outermost=False, and "
                    "call params = rlx2.mask(params, state) after every update"
                )
        frame = frame.f_back
