"""Tables 9 to 13: ζ_0, Δ_m, Δ_b, D_0 and T_0, each with its extreme cases."""

from experiments.suites import base

VALUES = {
    "zeta0": (0.1, 0.3, 0.7, 0.9),
    "mask_interval": (1000, 3000, 30_000, 100_000),
    "buffer_interval": (1000, 3000, 30_000, 100_000),
    "d0": (0.05, 0.1, 0.3, 0.5),
    "t0": (0, 100_000, 200_000, 400_000, 500_000),
}
# ζ_0 = 0 and Δ_m = ∞ are the same run, and so are Δ_b = ∞ and D_0 = ∞.
EXTREMES = {
    "static": {"zeta0": 0.0},
    "no adjustment": {"trim_ratio": 0.0},
    "one-step": {"t0": base.NEVER},
}


def units(budget: base.Budget) -> list[base.Unit]:
    """A unit for each value of each parameter."""
    variants = [("dense", "dense", {}), ("default", "rlx2", {})]
    variants += [(name, "rlx2", fields) for name, fields in EXTREMES.items()]
    variants += [
        (f"{name}={value}", "rlx2", {name: value})
        for name, values in VALUES.items()
        for value in values
    ]
    return base.task_units(budget, variants)


SUITE = base.Suite("sensitivity", "Tables 9 to 13: sensitivity to hyper-parameters", units)
