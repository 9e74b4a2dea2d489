"""The recorded clusters and lives, dumped and read by ``zonewise explain``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.run_program import here
from tests.explain.dumps import (
    ROUNDING,
    Item,
    endpoint,
    explain,
    listed,
    lived,
    lived_pods,
    packed,
    recorded,
)
from tests.vectors.recorded import lines

pytestmark = pytest.mark.slow


def test_clusters_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six hundred files give as many lines, each with the decision and measures on record."""
    rows = {f"{n:03}.json": row for n, row in enumerate(lines("hints.jsonl.gz"))}
    for name, row in rows.items():
        (tmp_path / name).write_text(json.dumps(listed(recorded(row))))
    result = here(capsys, "explain", "services", "-A", "-f", tmp_path, "-o", "jsonl")
    assert (result.code, result.err) == (0, "")
    reports = [json.loads(line) for line in result.out.splitlines()]
    assert [line["file"] for line in reports] == list(rows)
    for line in reports:
        row = rows[line["file"]]
        assert line["hinted"] == row["expect_hinted"], row
        assert line["inZoneWithoutHints"] == pytest.approx(row["no_hints_in_zone"], abs=ROUNDING)
        assert line["inZoneLimit"] == pytest.approx(row["limit_in_zone_at_20pct"], abs=ROUNDING)
        if line["hinted"]:
            assert all(zone["overload"] < 0.2 for zone in line["zones"])
            assert line["overload"] == max(zone["overload"] for zone in line["zones"])
        if line["hinted"] and row["upstream"]["hinted"]:
            assert line["inZone"] >= row["upstream"]["in_zone"] - ROUNDING


def test_lives_from_slices_alone() -> None:
    """States whose endpoints carry the hints of the step before are decided within the limits."""
    moved, theirs = 0, 0.0
    for life in lines("churn.jsonl.gz"):
        hints: dict[str, list[str]] = {}
        for step in life["steps"]:
            report = explain(lived(step, hints)).to_dict()
            was = bool(hints)
            if step["allowed"] != "keep":
                assert report["hinted"] == (step["allowed"] == "add")
            elif any(e["ready"] and e["address"] in hints for e in step["endpoints"]) or not was:
                assert report["hinted"] == was
            if report["hinted"]:
                assert report["overload"] <= 0.3 + ROUNDING
            now = {
                row["address"]: row["forZones"] for row in report["endpoints"] if row["forZones"]
            }
            moved += sum(now[address] != hints[address] for address in now.keys() & hints.keys())
            theirs += step["upstream"]["moved"]
            hints = now
    assert moved <= 0.25 * theirs


def test_lives_from_pods() -> None:
    """Pods beside the slices of the step before give the hints that slices of now give."""
    for number, life in enumerate(lines("churn.jsonl.gz")):
        if number % 4:
            continue
        hints: dict[str, list[str]] = {}
        slices: list[Item] = []
        for step in life["steps"]:
            report = explain(lived_pods(step, slices)).to_dict()
            same = explain(lived(step, hints)).to_dict()
            assert report["endpoints"] == same["endpoints"]
            assert report["hinted"] == same["hinted"]
            hints = {row["address"]: row["forZones"] for row in report["endpoints"]}
            slices = packed(
                [
                    endpoint(row["address"], row["zone"], ready=row["ready"], hints=row["forZones"])
                    for row in report["endpoints"]
                ]
            )
