"""Benchmarks of two revisions, compared in one run; with a fake measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks import against
from benchmarks.table import Row, Table


def sheet(title: str, **ours: float) -> dict[str, Any]:
    lines = [
        {"name": name, "unit": "1/s", "ours": value, "higher_is_better": True}
        for name, value in ours.items()
    ]
    return {"title": title, "lines": lines}


def test_both_revisions_run_in_turns_and_medians_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two revisions the other one runs first and last, and only lines that both have are
    compared.
    """
    order: list[str] = []
    there = {"create": iter((10.0, 30.0)), "gone": iter((1.0, 1.0))}
    here = {"create": iter((18.0, 14.0)), "new": iter((1.0, 1.0))}

    def run_benchmark(tree: Path, name: str) -> dict[str, Any]:
        order.append("here" if tree == against.HERE else "there")
        values = here if tree == against.HERE else there
        return {name: [sheet("writes", **{line: next(each) for line, each in values.items()})]}

    monkeypatch.setattr(against, "run_benchmark", run_benchmark)
    monkeypatch.setattr(against, "extract_revision", lambda revision, folder: None)
    (only,) = against.compare_with("v1", "embedded.writes")
    assert order == ["there", "here", "here", "there"]
    assert [(line.name, line.ours, line.real) for line in only.lines] == [("create", 16.0, 20.0)]
    assert "v1" in only.text()


@pytest.mark.system
def test_an_unknown_revision_is_refused(tmp_path: Path) -> None:
    """A revision that git does not know ends the program with its name."""
    with pytest.raises(SystemExit, match="no-such-revision"):
        against.extract_revision("no-such-revision", tmp_path)


def test_rows_of_tables_are_compared_without_those_of_peers() -> None:
    """Of a table of contestants the rows that are ours are compared, with the table's unit."""
    table = Table(
        title="creates",
        unit="1/s",
        higher_is_better=True,
        rows=(Row(name="CreateVolume", value=2.0, ours=True), Row(name="bare", value=3.0)),
    )
    assert against.read_numbers({"csi.create": [table.plain()]}) == {
        ("creates", "CreateVolume"): against.Number("1/s", True, (2.0,))
    }
