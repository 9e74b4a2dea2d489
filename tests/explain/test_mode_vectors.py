"""The recorded clusters and lives in modes shared and weighted, through ``zonewise explain``.

The reported numbers are measured again from the reported hints and weights, as a proxy reads them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.cli.run_program import here
from tests.explain.dumps import ROUNDING, Item, explain, listed, lived, recorded, service
from tests.vectors.recorded import lines

pytestmark = pytest.mark.slow

Report = dict[str, Any]
MODES = ("zonewise.io/shared", "zonewise.io/weighted")
TEXT = "zonewise.io/zone-weights"


def with_mode(items: Sequence[Item], mode: str, text: str = "") -> list[Item]:
    """The same objects with a Service in this mode, and slices with these weights."""
    others = [item for item in items if item["kind"] != "Service"]
    for item in others:
        if item["kind"] == "EndpointSlice" and text:
            item["metadata"]["annotations"] = {TEXT: text}
    return [*others, service(annotations={"service.kubernetes.io/topology-mode": mode})]


def measure(report: Report, weights: Mapping[str, Mapping[str, int]] | None) -> tuple[float, float]:
    """In-zone and overload: each zone draws an endpoint by hints, or by weights, if any."""
    ready = [row for row in report["endpoints"] if row["ready"]]
    hinted = all(row["forZones"] for row in ready)
    loads = [Fraction(0)] * len(ready)
    stays = Fraction(0)
    total = sum(zone["cpuMilli"] for zone in report["zones"])
    for zone in report["zones"]:
        name, share = zone["zone"], Fraction(zone["cpuMilli"], total)
        if weights is None:
            draw = [int(hinted and name in row["forZones"]) for row in ready]
        else:
            row_of = weights.get(name, {name: 1})
            draw = [row_of.get(row["zone"], 0) for row in ready]
        if not any(draw):
            draw = [1] * len(ready)
        for number, weight in enumerate(draw):
            part = share * weight / sum(draw)
            loads[number] += part
            stays += part if ready[number]["zone"] == name else 0
    return float(stays), float(max(loads) * len(ready) - 1)


def explain_recorded(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> list[tuple[Report, Report]]:
    """The report on each recorded cluster, and its record."""
    rows = {f"{n:03}.json": row for n, row in enumerate(lines("hints.jsonl.gz"))}
    for name, row in rows.items():
        (tmp_path / name).write_text(json.dumps(listed(with_mode(recorded(row), mode))))
    result = here(capsys, "explain", "services", "-A", "-f", tmp_path, "-o", "jsonl")
    assert (result.code, result.err) == (0, "")
    reports = [json.loads(line) for line in result.out.splitlines()]
    assert [line["file"] for line in reports] == list(rows)
    assert {line["mode"] for line in reports} == {mode}
    return [(line, rows[line["file"]]) for line in reports]


def test_shared_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In mode shared 600 clusters keep at least 0.717 in zone, those with three to six endpoints
    0.639; no endpoint carries 20 % more than the average, and ``assigned`` and ``overload`` of
    zones are those of endpoints.
    """
    every, small = [], []
    for report, row in explain_recorded(MODES[0], tmp_path, capsys):
        in_zone, overload = measure(report, None)
        assert report["inZone"] == pytest.approx(in_zone, abs=ROUNDING)
        assert report["inZone"] >= row["no_hints_in_zone"] - ROUNDING
        assert report["inZone"] <= row["limit_in_zone_at_20pct"] + ROUNDING
        if report["hinted"]:
            assert report["overload"] == pytest.approx(overload, abs=ROUNDING)
            assert overload < 0.2
            hinted = [target["forZones"] for target in report["endpoints"]]
            named = Counter(zone for zones in hinted for zone in zones)
            assert {zone["zone"]: zone["assigned"] for zone in report["zones"]} == named
            assert max(zone["overload"] for zone in report["zones"]) == report["overload"]
            assert all(1 <= len(zones) <= 8 for zones in hinted)
        else:
            assert report["reason"]["code"] == "NothingToGain"
        every.append(in_zone)
        if 3 <= len(row["endpoint_zones"]) <= 6:
            small.append(in_zone)
    assert sum(every) / 600 >= 0.717
    assert sum(small) / len(small) >= 0.639


def test_weighted_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In mode weighted 0.999 of what the limit allows stays in zone on average, and 0.995 in every
    cluster, with an overload below 20 %; ``stock`` is what hints alone do, as in mode shared.
    """
    parts, stock = [], []
    for report, row in explain_recorded(MODES[1], tmp_path, capsys):
        in_zone, overload = measure(report, report["zoneWeights"])
        assert report["inZone"] == pytest.approx(in_zone, abs=ROUNDING)
        assert report["overload"] == pytest.approx(overload, abs=ROUNDING)
        assert overload < 0.2
        assert report["inZoneLimit"] == pytest.approx(row["limit_in_zone_at_20pct"], abs=ROUNDING)
        parts.append(in_zone / report["inZoneLimit"])
        by_hints = measure(report, None)
        assert report["stock"]["inZone"] == pytest.approx(by_hints[0], abs=ROUNDING)
        assert report["stock"]["overload"] == pytest.approx(by_hints[1], abs=ROUNDING)
        stock.append(by_hints[0])
    assert sum(parts) / 600 >= 0.999
    assert min(parts) >= 0.995
    assert sum(stock) / 600 >= 0.717


@pytest.mark.parametrize("mode", MODES)
def test_lives(mode: str) -> None:
    """Over recorded states, each with the hints and weights of the step before, hints and texts
    change seldom, much stays in zone, no limit is broken, and a second decision changes nothing.
    """
    changes = moved = texts = steps = 0
    stays = limits = 0.0
    theirs: Counter[str] = Counter()
    for life in lines("churn.jsonl.gz"):
        hints: dict[str, list[str]] = {}
        earlier: dict[str, list[str]] = {}
        text = ""
        for number, step in enumerate(life["steps"]):
            report = explain(with_mode(lived(step, hints), mode, text)).to_dict()
            ready = [row for row in report["endpoints"] if row["ready"]]
            weights = report.get("zoneWeights")
            in_zone, overload = measure(report, weights) if ready else (0.0, 0.0)
            if report["hinted"] or weights is not None:
                assert overload <= 0.3 + ROUNDING, (life["name"], number)
                assert report["overload"] == pytest.approx(overload, abs=ROUNDING)
            now = {row["address"]: row["forZones"] for row in ready}
            new = "" if weights is None else json.dumps(weights, separators=(",", ":"))
            texts += new != text
            for name in now.keys() & earlier.keys():
                changes += now[name] != earlier[name]
                moved += bool(now[name] and earlier[name] and now[name] != earlier[name])
            hints = {name: zones for name, zones in now.items() if zones}
            if number % 8 == 0:
                again = explain(with_mode(lived(step, hints), mode, new)).to_dict()
                assert again["endpoints"] == report["endpoints"], (life["name"], number)
                assert again.get("zoneWeights") == weights
            earlier, text = now, new
            steps += 1
            if mode == MODES[0] or weights is not None:
                # Where a node or an endpoint has no zone nothing can be decided.
                stays += in_zone
                limits += report["inZoneLimit"]
            theirs["changes"] += step["upstream"]["hint_changes"]["mean"]
            theirs["moved"] += step["upstream"]["moved"]
    assert steps == 1640
    assert changes <= 0.42 * theirs["changes"]
    assert moved <= 0.36 * theirs["moved"]
    if mode == MODES[0]:
        assert stays / steps >= 0.82
    else:
        assert stays >= 0.992 * limits
        assert texts <= 0.28 * steps
