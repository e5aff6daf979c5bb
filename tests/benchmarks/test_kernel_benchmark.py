"""The kernel benchmark: counts and measurements."""

import pytest

from benchmarks import kernel_benchmark
from rlx2_jax.kernels import native

pytestmark = [
    pytest.mark.fast,
    pytest.mark.skipif(native.execution() != "native", reason="no kernels on this machine"),
]


def test_the_limit_counts_operations():
    count = native.load().Rlx2MultiplyAdds
    lanes = count(0, 1) // 12
    assert lanes in (4, 8, 16)  # floats of a vector
    assert count(1, 1000) == 12 * lanes * 1000
    rates = [kernel_benchmark.multiply_adds(load)() for load in (False, True)]
    assert all(0.1 < rate < 1000 for rate in rates)


def test_networks_are_measured_in_both_forms(monkeypatch):
    monkeypatch.setattr(kernel_benchmark, "CALLS", 2)
    subjects = kernel_benchmark.of_network("small", (5, 16, 16, 2), 0.8)
    assert list(subjects) == [
        f"small, {form}, {which}"
        for form in ("live links", "dense")
        for which in ("forward", "forward and backward")
    ]
    assert all(measure() > 0 for measure in subjects.values())


def test_full_layers_are_compared_with_those_missing_one_link(monkeypatch):
    monkeypatch.setattr(kernel_benchmark, "CALLS", 2)
    subjects = kernel_benchmark.of_layer(5, 3)
    assert list(subjects) == [
        f"layer 5 to 3, {which}" for which in ("all links", "all links but one")
    ]
    assert all(measure() > 0 for measure in subjects.values())
