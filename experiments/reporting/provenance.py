"""The provenance of results: lists units whose formats, versions or commits differ."""

from experiments.reporting.results import Results


def differences(results: Results) -> list[str]:
    """One sentence for each difference between units."""
    values: dict[str, dict[str, list[str]]] = {}
    for suite in results.suites.values():
        for unit in suite.units:
            for part in unit.parts or (unit,):
                for key, value in part.provenance.items():
                    names = values.setdefault(key, {}).setdefault(value, [])
                    names.append(f"{suite.name}/{part.name}")
    found = []
    for key, units in values.items():
        if len(units) > 1:
            kinds = sorted(units.items(), key=lambda item: -len(item[1]))
            parts = [f"{value} ({_some(names)})" for value, names in kinds]
            found.append(f"units differ in {key}: {'; '.join(parts)}")
    return found


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
