"""Whole dumps through ``zonewise explain``, compared with a model that reads the same objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.run_program import here
from tests.disruption.drawn_dumps import MOMENTS, dump
from tests.disruption.dump_model import Count, Dump, Row, is_plain, verdict
from tests.explain.dumps import with_budgets

CASES = 600
LATEST = max(MOMENTS.values())


def rows(capsys: pytest.CaptureFixture[str], what: str, folder: Path) -> dict[str, list[Row]]:
    """The rows for the files of a folder."""
    result = here(capsys, "explain", what, "-A", "-f", str(folder), "-o", "jsonl")
    assert result.code == 0, result.err
    by_file: dict[str, list[Row]] = {}
    for row in map(json.loads, result.out.splitlines()):
        by_file.setdefault(row.pop("file"), []).append(row)
    return by_file


@pytest.mark.slow
def test_reports_about_many_clusters_agree_with_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every number of every budget and the verdict on every pod follow the written rules: workloads
    of all kinds, several under one selector, old and new label keys, missing nodes and owners,
    grants, several budgets of both kinds on a pod.
    """
    towns = {f"{seed:04}.json": dump(seed) for seed in range(CASES)}
    for name, items in towns.items():
        (tmp_path / name).write_text(with_budgets(items))
    budgets, pods = rows(capsys, "budgets", tmp_path), rows(capsys, "pods", tmp_path)
    codes = set()
    for name, items in towns.items():
        town = Dump(items, LATEST, MOMENTS)
        counts = {
            budget["metadata"]["name"]: Count(town, budget)
            for budget in town.budgets()
            if not is_plain(budget)
        }
        for row in budgets[name]:
            codes.add(row["reason"]["code"])
            if row["budget"] not in counts:
                (only,) = row["domains"]
                assert only["domain"] == "*"
                continue
            count = counts[row["budget"]]
            code = row.pop("reason")["code"]
            assert row.pop("namespace") == "shop"
            assert (code == "UnknownScale") == count.unknown, name
            expected = count.row()
            if count.unknown:
                assert row["replicas"] is None
                for domain in row["domains"]:
                    assert domain["disruptionsAllowed"] == (0 if domain["guarded"] else None)
                continue
            assert row == expected, name
        expected_verdicts = {
            pod["metadata"]["name"]: verdict(town, counts, pod) for pod in town.pods
        }
        verdicts = {
            row["pod"]: {
                "allowed": row["allowed"],
                "charged": row["charged"],
                "code": row["reason"]["code"],
                "blockers": sorted((b["budget"], b["kind"], b["domain"]) for b in row["blockers"]),
            }
            for row in pods[name]
        }
        assert verdicts == expected_verdicts, name
        codes |= {row["code"] for row in verdicts.values()}
    assert codes >= {"Free", "Granted", "Unready", "Uncovered", "Allowed", "Blocked"}
    assert codes >= {"UnknownScale", "SufficientPods", "InsufficientPods"}
