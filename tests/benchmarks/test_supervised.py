"""The supervised comparison: its task, and its page against the measurements."""

import copy
import json
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import DOCS

from benchmarks import supervised
from rlx2_jax.sparse.methods import METHODS

MEASURED = DOCS / "measured" / "supervised.json"


@pytest.fixture(scope="module")
def measured():
    return json.loads(MEASURED.read_text())


@pytest.mark.fast
def test_the_page_matches_the_measurements(measured):
    assert (DOCS / "supervised.md").read_text() == supervised.page(measured)


@pytest.mark.fast
def test_the_figure_matches_the_measurements(measured):
    assert supervised.digest(measured).encode() in (DOCS / "supervised.png").read_bytes()


@pytest.mark.fast
def test_another_measurement_is_another_page_and_figure(measured, tmp_path):
    changed = copy.deepcopy(measured)
    changed["methods"]["rigl"]["0.98"]["accuracy"][0] -= 0.5
    assert supervised.page(changed) != supervised.page(measured)
    assert supervised.digest(changed) != supervised.digest(measured)
    (tmp_path / "x.json").write_text(json.dumps(changed))
    supervised.write(tmp_path / "x.json", tmp_path)
    assert supervised.digest(changed).encode() in (tmp_path / "supervised.png").read_bytes()


@pytest.mark.fast
def test_it_is_complete(measured):
    """All methods but the alias of `static`, every sparsity, every seed, and exact counts."""
    assert set(measured["methods"]) == set(METHODS) - {"ss"} == set(supervised.ABOUT)
    assert measured["task"]["seeds"] == supervised.SEEDS == 5
    assert measured["task"]["steps"] == supervised.STEPS
    sizes = measured["task"]["layers"]
    total = sum(i * o for i, o in pairwise(sizes))
    for method, runs in measured["methods"].items():
        own = [0.0] if method == "dense" else list(supervised.SPARSITIES)
        assert [float(s) for s in runs] == own
        for s, found in runs.items():
            assert len(found["accuracy"]) == 5
            excess = [n - (1 - float(s)) * total for n in found["links"]]
            room = sum(sizes[1:]) / 2 if method == "srigl" else 3  # one link a unit, or a layer
            assert all(abs(x) <= room for x in excess), (method, s, excess)


@pytest.mark.fast
def test_classes_differ_in_frequency_alone():
    """Means of all inputs are alike in all classes; the power at a class's frequency is not."""
    places = jnp.arange(supervised.SAMPLES) * 3
    with jax.numpy_rank_promotion("allow"):
        x, label = map(np.asarray, supervised.examples(places, jax.random.key(0), 8000))
    assert x.shape == (8000, supervised.INPUTS)
    signal = x[:, np.asarray(places)]
    power = np.abs(np.fft.rfft(signal, axis=1))[:, 1 : supervised.CLASSES + 1]
    for k in range(supervised.CLASSES):
        assert np.abs(x[label == k].mean(axis=0)).max() < 0.2
    assert (power.argmax(axis=1) == label).mean() > 0.99
    assert abs(x.std() - 1) < 0.1


def test_a_short_measurement():
    with jax.numpy_rank_promotion("allow"):
        found = supervised.measure(("dense", "rigl"), steps=4, seeds=2)
    assert [len(x["accuracy"]) for x in found["methods"]["rigl"].values()] == [2] * 4
    assert found["methods"]["dense"]["0.0"]["links"] == [12_800]
    assert found["methods"]["rigl"]["0.9"]["links"] == [1281]
