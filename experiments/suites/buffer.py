"""Table 8 and figure 6: buffers of fixed capacity, unlimited, and dynamic."""

from experiments.suites import base

CAPACITIES = {"5e4": 5e4, "1e5": 1e5, "2e5": 2e5, "1e6": 1e6, "unlimited": 3e6}


def units(budget: base.Budget) -> list[base.Unit]:
    """RLx2 with each buffer. `unlimited` stores the whole run."""
    fixed = [
        (name, "rlx2", {"b_max": size, "b_min": 0, "trim_ratio": 0.0})
        for name, size in CAPACITIES.items()
    ]
    variants = [("dense", "dense", {}), *fixed, ("dynamic", "rlx2", {})]
    return base.task_units(budget, variants)


SUITE = base.Suite("buffer", "Table 8 and figure 6: buffer capacity", units)
