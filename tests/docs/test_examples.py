"""Every example runs with small settings and gives its stated results."""

import ast
import importlib.util
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT

import rlx2_jax as rlx2
from rlx2_jax.export import compiled

FOLDER = ROOT / "examples"
NAMES = sorted(path.name for path in FOLDER.glob("*.*"))


@pytest.fixture(autouse=True)
def promotion():
    """Examples broadcast as their readers would."""
    with jax.numpy_rank_promotion("allow"):
        yield


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.fast
def test_the_readme_lists_every_example():
    listed = re.findall(r"^\| \[(\S+)\]\(\1\) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted([*listed, "README.md"]) == NAMES


@pytest.mark.fast
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".py")])
def test_examples_are_short_programs(name):
    text = (FOLDER / name).read_text()
    tree = ast.parse(text)
    assert any(isinstance(x, ast.FunctionDef) and x.name == "main" for x in tree.body)
    assert (ast.get_docstring(tree) or "").strip()
    assert name == "rlx2_td3.py" or len(text.splitlines()) < 120


@pytest.mark.parametrize("library", ["linen", "nnx", "equinox"])
def test_classifiers(library, capsys):
    if library == "equinox":
        pytest.importorskip("equinox")
    accuracy = load(f"classifier_{library}").main(steps=150)
    said = capsys.readouterr().out
    assert accuracy > 0.5  # chance is 1/8
    assert re.search(r"all sparse +25600 +2,56\d +0\.100", said), said


def test_a_custom_td3(capsys):
    steps, seeds = 2400, 2
    (actor, critic, targets), fell = load("td3_purejax").main(steps=steps, seeds=seeds)
    falls = fell.reshape(seeds, 4, -1).sum(axis=2)
    assert (falls[:, -1] < falls[:, 0] / 2).any()  # here both have learned
    for state, target in zip((actor, critic), targets):
        masks = rlx2.masks_of(state.opt_state)
        for p, t, m in zip(*map(jax.tree.leaves, (state.params, target, masks))):
            assert not p[~m].any() and not t[~m].any()
        assert rlx2.sparsity(state.opt_state) == pytest.approx(0.9, abs=0.01)


@pytest.mark.filterwarnings("default")  # SBX's own
def test_sbx(capsys):
    pytest.importorskip("sbx", reason="needs SBX: pip install sbx-rl")
    model = load("sbx_td3").main(steps=400, warmup=100, hidden=16)
    for state in (model.policy.actor_state, model.policy.qf_state):
        masks = rlx2.masks_of(state.opt_state)
        trees = (state.params, state.target_params, masks)
        for p, t, m in zip(*map(jax.tree.leaves, trees), strict=True):
            assert not p[~m].any() and not t[~m].any()
        assert rlx2.sparsity(state.opt_state) == pytest.approx(0.9, abs=0.01)
    critics = jax.tree.leaves(rlx2.masks_of(model.policy.qf_state.opt_state))
    kernels = [m for m in critics if m.ndim == 3]  # both critics stacked
    assert kernels and all(len(set(m.sum(axis=(1, 2)).tolist())) == 1 for m in kernels)


def test_64_lanes(capsys):
    result = load("sweep_lanes").main(steps=120, warmup=60, hidden=(8, 8))
    assert result.metrics["return"].shape == (16, 4, 3)
    masks = result.agent.actor.masks["Dense_1"]["kernel"]
    links = masks.sum(axis=(2, 3)).reshape(4, 4, 4)  # sparsity, method, seed
    assert (links == links[:, :1, :1]).all() and (jnp.diff(links[:, 0, 0]) < 0).all()
    assert not result.agent.actor.params["Dense_1"]["kernel"][~masks].any()
    critics = [np.asarray(x).reshape(64, -1) for x in jax.tree.leaves(result.agent.critic.params)]
    assert len({lane.tobytes() for lane in np.concatenate(critics, axis=1)}) == 64
    assert "rlx2" in capsys.readouterr().out


def test_deployment_to_c(capsys):
    if compiled.compiler() is None:
        pytest.skip("there is no C compiler")
    policy, survived, last = load("deploy_c").main(steps=100)
    assert policy.links <= 0.05 * (2 * 64 + 64 * 64 + 64) + 1 and survived == 100
    angle, speed, steps = np.float32(0.1), np.float32(0), 0
    while steps < 100 and abs(angle) <= 0.8:
        action = policy(np.array([angle, speed]))[0]
        speed = np.float32(speed + 0.05 * (9.8 * np.sin(angle) + 12 * action))
        angle, steps = np.float32(angle + 0.05 * speed), steps + 1
    assert survived == steps and last == pytest.approx(float(angle), abs=1e-3)


def notebook() -> dict[str, Any]:
    return json.loads((FOLDER / "tour.ipynb").read_text())


@pytest.mark.fast
def test_the_notebook_is_small_and_valid():
    found = notebook()
    assert found["nbformat"] == 4 and (FOLDER / "tour.ipynb").stat().st_size < 200_000
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    for cell in found["cells"]:
        assert cell["cell_type"] in ("code", "markdown")
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error"


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch, tmp_path):
    """All code cells in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for i, cell in enumerate(notebook()["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"tour.ipynb, cell {i}", "exec"), names)
