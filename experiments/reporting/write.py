"""The report's files: report.md, index.html, figures/, tables/."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.reporting import exhibits, figures, page, provenance
from experiments.reporting.exhibits import Section
from experiments.reporting.figures import Absent, Figure
from experiments.reporting.panels import Item
from experiments.reporting.results import Results, Suite
from experiments.suites import base
from rlx2_jax.reporting import markup, status, tables
from rlx2_jax.reporting.markup import printable, slug
from rlx2_jax.reporting.tables import Cell, Column, Table
from rlx2_jax.training import heartbeat

TITLE = "rlx2_jax compared to the paper"


def write(results: Results, out: Path, kinds: Sequence[str] = figures.KINDS) -> list[str]:
    """Writes the report to `out`, with figures of all `kinds`; returns the warnings that the report
    shows. The HTML page needs PNG figures."""
    warnings = [*results.warnings, *provenance.differences(results)]
    trained = [suite for name, suite in results.suites.items() if name != "flops"]
    sections = [_overview(trained)] if trained else []
    sections += [_section(suite, warnings) for suite in trained]
    sections.append(exhibits.ledger_section())
    _clear(out)
    keys: set[str] = set()
    sections = [_with_files(section, out, keys, warnings, kinds) for section in sections]
    text, warnings = banner(trained), [printable(w, 1000) for w in warnings]
    (out / "report.md").write_text(_markdown(sections, warnings, text), "utf-8")
    if "png" in kinds:
        document = page.page(TITLE, sections, warnings, text, out / "figures")
        (out / "index.html").write_text(document, "utf-8")
    return warnings


def _section(suite: Suite, warnings: list[str]) -> Section:
    """A suite's section; invalid files give a warning instead."""
    try:
        return exhibits.section(suite)
    except Exception as error:  # untrusted files may have any types
        problem = f"{suite.name} cannot be shown: {printable(repr(error))}"
        warnings.append(problem)
        return Section(suite.name, f"{suite.name}: {suite.title}", (problem,))


def _with_files(
    section: Section, out: Path, keys: set[str], warnings: list[str], kinds: Sequence[str]
) -> Section:
    """Writes the figures and tables of a section; `keys` are the names in use."""
    key = _unused(section.key, keys, "suite-")
    items: list[Item] = []
    for item in section.items:
        if not isinstance(item, Absent):
            item = replace(item, key=_unused(item.key, keys))
        if isinstance(item, Table):
            (out / "tables" / f"{item.key}.csv").write_text(tables.to_csv(item), "utf-8")
        elif isinstance(item, Figure) and kinds:
            try:
                figures.save(item, out / "figures", section.stamp, kinds)
            except OSError:
                raise
            except Exception as error:  # untrusted numbers
                warnings.append(f"{item.title}: cannot be drawn: {printable(repr(error))}")
                item = Absent(item.title, "it cannot be drawn")
        items.append(item)
    return replace(section, key=key, items=items)


def _unused(key: str, keys: set[str], prefix: str = "") -> str:
    """`key`, with a number appended if it is in use."""
    found, n = key, 1
    while slug(prefix + found) in keys:
        n += 1
        found = f"{key}-{n}"
    keys.add(slug(prefix + found))
    return found


def _clear(out: Path) -> None:
    """Creates the folders and removes only files of an earlier report."""
    for name, kinds in (("figures", (".png", ".svg")), ("tables", (".csv",))):
        (out / name).mkdir(parents=True, exist_ok=True)
        before = out / "report.md"
        if before.exists() and before.read_text("utf-8").startswith(f"# {TITLE}\n"):
            for path in (out / name).iterdir():
                if path.suffix in kinds:
                    path.unlink()


def banner(suites: list[Suite]) -> str:
    """One sentence about the scope of the results."""
    if not suites:
        return "No training results: only the ledger, which needs no runs, is reported."
    share = min(exhibits.fraction(s) or 0.0 for s in suites)
    counts = [
        len({lane.seed for lane in u.named(n)}) for s in suites for u in s.units for n in u.names
    ]
    fewest = min(counts, default=0)
    if share >= 1 and fewest >= base.SEEDS:
        return "All runs have the paper's steps and at least its number of seeds."
    budgets = dict.fromkeys(str(s.budget.get("name", "not named")) for s in suites)
    most = max(counts, default=0)
    seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    return (
        f"Not a reproduction of the paper's results. Budget: {', '.join(budgets)}; as little as "
        f"{100 * share:.4g} % of the paper's steps and {seeds} seed(s) of each kind of run "
        f"(paper: {base.SEEDS}). Each section states its own."
    )


def _overview(suites: list[Suite]) -> Section:
    rows: list[tuple[Cell, ...]] = []
    for suite in suites:
        counts = [sum(u.status == s for u in suite.parts) for s in ("finished", "unfinished")]
        absent = sum(u.status == "missing" for u in suite.parts)
        share = exhibits.fraction(suite)
        rows.append(
            (
                suite.name,
                str(suite.budget.get("name", "not named")),
                "not stated" if share is None else f"{100 * share:.4g}",
                len(suite.parts),
                *counts,
                absent,
                exhibits.seeds_found(suite).removeprefix("seeds found: "),
            )
        )
    columns = (
        Column("suite"),
        Column("budget"),
        Column("% of the paper's steps"),
        *(Column(x, "units") for x in ("planned or found", "finished", "unfinished", "missing")),
        Column("seeds found"),
    )
    table = Table("overview", "What was found", columns, tuple(rows))
    return Section("overview", "Overview", (), [table, *_status(suites)])


def _status(suites: list[Suite]) -> list[Table]:
    """The states of units; empty for collected results."""
    places = {
        unit.directory.resolve(): f"{suite.name}/{unit.name}"
        for suite in reversed(suites)
        for unit in reversed(suite.parts)
    }
    if not any((place / heartbeat.NAME).exists() for place in places):
        return []
    found = [status.read(place, name) for place, name in reversed(places.items())]
    return [replace(status.table(found), folded=True)]


def _markdown(sections: list[Section], warnings: list[str], banner: str) -> str:
    text = markup.markdown
    parts = [f"# {TITLE}", text(banner)]
    if warnings:
        parts += ["## Problems found in the logs", "\n".join(f"- {text(w)}" for w in warnings)]
    for section in sections:
        parts += [f"## {text(section.title)}", *map(text, section.lead)]
        for item in section.items:
            if isinstance(item, Table):
                parts.append(tables.markdown(item).rstrip())
            elif isinstance(item, Absent):
                parts.append(f"*{text(item.title)}: missing ({text(item.reason)})*")
            else:
                title = text(item.title)
                parts.append(f"![{title}](figures/{item.key}.png)\n\n{title}.")
    return "\n\n".join(parts) + "\n"
