"""The public names: quick to import, documented, with runnable examples."""

import doctest
import importlib
import inspect
import subprocess
import sys

import pytest

import rlx2_jax as rlx2

pytestmark = pytest.mark.fast

HEAVY = ("gymnasium", "mujoco", "brax", "envpool", "orbax", "absl", "matplotlib", "onnx")
PUBLIC = [name for name in rlx2.__all__ if name != "__version__"]


def test_nothing_heavy_is_imported():
    """Neither by the package nor by touching any of its names; what Flax and Optax import
    themselves (parts of absl) does not count."""
    code = (
        "import sys, rlx2_jax as rlx2\n"
        "assert 'jax' not in sys.modules\n"
        "import flax.linen, optax\n"
        "before = set(sys.modules)\n"
        f"names = [getattr(rlx2, name) for name in {PUBLIC}]\n"
        f"print([m for m in {HEAVY} if m in set(sys.modules) - before])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_names():
    assert set(PUBLIC) <= set(dir(rlx2))
    with pytest.raises(AttributeError, match="no attribute 'density'"):
        rlx2.density  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_documented(name):
    assert (inspect.getdoc(getattr(rlx2, name)) or "").strip()


@pytest.mark.parametrize(
    "module",
    [
        "training.functional",
        "training.train",
        "export.load",
        "sparse.optimizer",
        "sparse.rules",
        "sparse.state",
        "config.hyper",
        "config.resolve",
    ],
)
def test_examples_run(module):
    found = importlib.import_module(f"rlx2_jax.{module}")
    results = doctest.testmod(found, optionflags=doctest.ELLIPSIS)
    assert results.attempted and not results.failed


def test_settings_of_train_are_checked():
    with pytest.raises(ValueError, match="no setting 'seed': did you mean seeds"):
        rlx2.train("InvertedPendulum-v5", seed=3)
    with pytest.raises(ValueError, match="unknown method 'rlx3'"):
        rlx2.train("rlx2_jax/Truncation-v0", method="rlx3")
    with pytest.raises(ValueError, match="--env=Hoper-v5"):
        rlx2.train("Hoper-v5")
