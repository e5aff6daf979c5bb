"""Draws the package's import graph into docs/architecture.md: python docs/draw_imports.py

Includes imports inside functions and under `TYPE_CHECKING`, so that none can hide a cycle.
tests/test_architecture.py checks that the page is up to date and that imports follow `LAYERS`.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- imports: begin -->", "<!-- imports: end -->"
PACKAGE = "rlx2_jax"
# From bottom to top. A module imports from its own layer and from those below.
LAYERS = (
    ("types", "algorithms", "_version"),
    ("control_flow", "prng", "files", "archive"),
    ("kernels", "replay"),
    ("sparse",),
    ("networks",),
    ("options", "option_table", "checks", "config", "presets"),
    ("agents", "envs", "trackers"),
    ("training",),
    ("export", "reporting"),
    ("cli",),
    (PACKAGE,),  # the public names
    ("experiments", "benchmarks"),
)

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """All modules of the repository by name."""
    found = {}
    for top in (PACKAGE, "experiments", "benchmarks"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def graph() -> Graph:
    """The imports of each module, restricted to this repository."""
    known = modules()
    return {name: _imports(ast.parse(path.read_text()), known) for name, path in known.items()}


def _imports(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return found & set(known)


def unit(module: str) -> str:
    """The name in `LAYERS` that a module belongs to."""
    top, _, rest = module.partition(".")
    if top != PACKAGE:
        return top
    first = rest.partition(".")[0]
    return "cli" if first == "__main__" else first or PACKAGE


def units(modules: Graph) -> Graph:
    """The import graph of the units in `LAYERS`."""
    found: Graph = {}
    for module, imported in modules.items():
        found.setdefault(unit(module), set()).update(unit(x) for x in imported)
    return {name: imported - {name} for name, imported in found.items()}


def cycle(graph: Graph) -> list[str]:
    """The modules of an import cycle, if there is one."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := search(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := search(name, []))), [])


def _reachable(graph: Graph, name: str) -> set[str]:
    return graph[name].union(*(_reachable(graph, other) for other in graph[name]))


def draw() -> str:
    """The graph as Mermaid, without transitive arrows, and a table of all imports."""
    found = units(graph())
    lines = ["```mermaid", "flowchart TD"]
    for number, layer in enumerate(LAYERS):
        lines.append(f'  subgraph layer{number}[" "]')
        lines += [f"    {name}" for name in layer]
        lines.append("  end")
    for name in (x for layer in reversed(LAYERS) for x in layer):
        indirect = set().union(*(_reachable(found, other) for other in found[name]))
        lines += [f"  {name} --> {other}" for other in sorted(found[name] - indirect)]
    lines += ["```", "", "| | imports |", "| --- | --- |"]
    for name in (x for layer in reversed(LAYERS) for x in layer):
        lines.append(f"| `{name}` | {', '.join(f'`{x}`' for x in sorted(found[name]))} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the current graph."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{draw()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
