"""The fault campaign of `tests/faults`: a small part; the slow tests run all of it."""

import dataclasses
import os
from pathlib import Path

import pytest
from faults import __main__ as command
from faults import cases, damage, errors, inject, kills, memory, parts
from faults.campaign import Campaign, campaign
from faults.report import Outcome, carry_out, summary

pytestmark = pytest.mark.skipif(inject.compiler() is None, reason="needs a C compiler")
SMALL = ("--policy_delay=1", "--target_interval=1")
CACHE = Path(os.environ.get("RLX2_TEST_CACHE", ".cache")) / "faults"


@pytest.fixture(scope="module")
def attack(tmp_path_factory):
    with campaign(tmp_path_factory.mktemp("faults"), CACHE, jobs=2) as found:
        yield found


@pytest.fixture(scope="module")
def reference(attack: Campaign):
    """With one update in a loop's body: some twenty processes trace and load it."""
    case = cases.CASES["td3-masked"]
    case = dataclasses.replace(case, flags=(*case.flags, *SMALL))
    with attack.pool.server() as server:
        return cases.reference(case, server, attack.scratch, warm=False)


def assert_all_good(title: str, outcomes: list[Outcome]) -> None:
    assert all(x.good for x in outcomes), "\n" + summary(title, outcomes)


def test_every_write_is_seen(reference):
    """No file appears in a run directory without a call that the library counted."""
    opened = {c.path for c in reference.ended.calls if c.operation in ("open", "rename")}
    names = {Path(path).name for path in opened}
    written = [p for p in reference.directory.rglob("*") if p.is_file()]
    assert len(written) > 10
    assert {p.name for p in written} <= names
    tables = {c.path for c in reference.ended.calls if c.operation == "write"}
    assert {"evaluations.csv", "metrics.csv"} <= tables


def test_some_kills(attack, reference):
    trials = [t for t in kills.plan([reference], 30, seed=1) if t.column == "at a write"][:4]
    found = carry_out(trials, lambda t: kills.run(t, attack.pool, attack.scratch), attack.jobs)
    assert sum(x.faults for x in found) >= 3
    assert_all_good("kills", found)


def test_some_damaged_files(attack, reference):
    with attack.pool.server() as server:
        stopped = damage.interrupted(reference, server, attack.scratch, "term")
    trials = damage.plan([damage.finished(reference)], 6, seed=1)
    trials += damage.plan([stopped], 6, seed=1)
    trials = [dataclasses.replace(t, number=i) for i, t in enumerate(trials)]
    found = carry_out(trials, lambda t: damage.run(t, attack.pool, attack.scratch), attack.jobs)
    assert_all_good("damage", found)


def test_some_failing_writes(attack, reference):
    trials = errors.once(reference, 6, seed=1)
    found = carry_out(trials, lambda t: errors.run(t, attack.pool, attack.scratch), attack.jobs)
    assert sum(x.faults for x in found) >= 5
    assert_all_good("errors", found)


@pytest.mark.slow
@pytest.mark.parametrize("part", list(parts.PARTS))
def test_whole_part(attack, part):
    options = command.arguments([])
    assert_all_good(part, parts.PARTS[part](attack, options))


@pytest.mark.slow
def test_memory_estimate(tmp_path):
    CACHE.mkdir(parents=True, exist_ok=True)
    found = [memory.measure(*size, tmp_path, CACHE.resolve()) for size in memory.SIZES]
    assert all(x.good for x in found), "\n" + memory.table(found)
