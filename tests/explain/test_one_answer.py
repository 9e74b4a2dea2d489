"""Reports on Services are what proxies do, on a cluster of 40 nodes with every mode."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.cli.run_program import here
from tests.explain.dumps import listed
from tests.explain.eks import ZONES, cluster, nodes

Capture = pytest.CaptureFixture[str]
Report = dict[str, Any]
ROUNDING = 2e-6


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """The cluster in a file."""
    path = tmp_path / "eks.json"
    path.write_text(json.dumps(listed(cluster())))
    return path


def explain_services(dump: Path, capsys: Capture) -> dict[str, Report]:
    """The report on every Service, by name."""
    result = here(capsys, "explain", "services", "-A", "-f", dump, "-o", "jsonl")
    assert result.code == 0
    return {row["service"]: row for row in map(json.loads, result.out.splitlines())}


def sum_routes(dump: Path, capsys: Capture) -> dict[str, tuple[float, float]]:
    """Per Service, what the routes of all nodes do: in zone of the answered, and unanswered."""
    result = here(capsys, "proxy", "--dry-run", "-f", dump, "-o", "jsonl")
    assert result.code == 0
    cpu = {
        node["metadata"]["name"]: int(node["status"]["allocatable"]["cpu"][:-1]) for node in nodes()
    }
    zones = {
        address: endpoint["zone"]
        for item in cluster()
        if item["kind"] == "EndpointSlice"
        for endpoint in item["endpoints"]
        for address in endpoint["addresses"]
    }
    total = sum(cpu.values())
    stays: dict[str, Fraction] = {}
    lost: dict[str, Fraction] = {}
    for row in map(json.loads, result.out.splitlines()):
        for route in row["routes"]:
            name, weight = route["service"], Fraction(cpu[row["node"]], total)
            ends = route["endpoints"]
            whole = sum(end["weight"] for end in ends)
            near = sum(end["weight"] for end in ends if zones[end["address"]] == row["zone"])
            assert bool(ends) is (route["action"] == "dnat")
            stays[name] = stays.get(name, Fraction(0)) + weight * Fraction(near, whole or 1)
            lost[name] = lost.get(name, Fraction(0)) + weight * (not ends)
    return {name: (float(stays[name] / (1 - lost[name])), float(lost[name])) for name in stays}


def test_what_slices_do_is_what_routes_do(dump: Path, capsys: Capture) -> None:
    """The parts of traffic in zone and unanswered, by the slices as they are, equal the sum over
    all nodes' routes.
    """
    reports, routes = explain_services(dump, capsys), sum_routes(dump, capsys)
    assert {"local", "keyed", "two-zones", "kept", "kubernetes"} <= routes.keys()
    for name, (in_zone, unanswered) in routes.items():
        applied = reports[name]["applied"]
        assert applied["inZone"] == pytest.approx(in_zone, abs=ROUNDING), name
        assert applied.get("unanswered", 0) == pytest.approx(unanswered, abs=ROUNDING), name


def test_a_local_policy_says_where_packets_are_dropped(dump: Path, capsys: Capture) -> None:
    """Nine of forty nodes have an endpoint: all that is answered stays, the rest is dropped."""
    row = explain_services(dump, capsys)["local"]
    assert (row["reason"]["code"], row["inZone"]) == ("LocalPolicy", 1.0)
    assert row["unanswered"] == pytest.approx(0.769, abs=0.001)
    page = here(capsys, "explain", "service", "local", "-n", "shop", "-f", dump).out
    assert "76.9 % of the traffic gets no answer: it is dropped on 31 of 40 nodes" in page
    assert "33.3 %" not in page


def test_keyed_services_report_what_keys_do(dump: Path, capsys: Capture) -> None:
    """All traffic of a Service with keys stays, and the line of the table says so."""
    assert explain_services(dump, capsys)["keyed"]["inZone"] == 1.0
    table = here(capsys, "explain", "services", "-n", "shop", "-f", dump).out
    (line,) = (line for line in table.splitlines() if " keyed " in line)
    assert line.count("100.0 %") == 2


@pytest.mark.parametrize("name", ["keyed", "local-plain", "alias", "kubernetes"])
def test_no_advice_that_would_be_refused(name: str, dump: Path, capsys: Capture) -> None:
    """A Service that cannot have hints, by keys, policy or kind, is not advised to request them."""
    assert "Auto" not in explain_services(dump, capsys)[name]["reason"]["fix"]
    assert "Auto" in explain_services(dump, capsys)["plain"]["reason"]["fix"]


def test_overload_counts_what_falls_back(dump: Path, capsys: Capture) -> None:
    """Endpoints carry the traffic of a zone without any, in the column as in the sentence."""
    row = explain_services(dump, capsys)["two-zones"]
    column = [zone["overload"] for zone in row["zones"]]
    assert len(column) == len(ZONES)
    assert column[1] is None
    assert max(overload for overload in column if overload is not None) == row["overload"] > 0


@pytest.mark.parametrize("name", ["auto", "near", "node", "shared", "weighted", "half-local"])
def test_the_column_and_the_sentence_are_of_the_same_traffic(
    name: str, dump: Path, capsys: Capture
) -> None:
    """In every mode the highest overload of the zones is that of the busiest endpoint."""
    row = explain_services(dump, capsys)[name]
    assert row["hinted"]
    column = [zone["overload"] for zone in row["zones"] if zone["overload"] is not None]
    assert max(column) == row["overload"]
    page = here(capsys, "explain", "service", name, "-n", "shop", "-f", dump).out
    (line,) = (line for line in page.splitlines() if line.startswith("The busiest endpoint"))
    assert f" {row['overload'] * 100:.1f} % more than average" in line
    assert ("hints are taken away above" in line) is (name in ("auto", "shared", "weighted"))


def test_hints_that_are_kept_say_so(dump: Path, capsys: Capture) -> None:
    """Of equal Services the one that had hints keeps them, up to the limit of keeping."""
    table = here(capsys, "explain", "services", "-n", "shop", "-f", dump).out
    (row,) = (line for line in table.splitlines() if " kept " in line)
    assert "yes, kept: it had hints" in row
    assert row.count("100.0 %") == 2
    assert "no: Overload" in next(line for line in table.splitlines() if " not-kept " in line)
    page = here(capsys, "explain", "service", "kept", "-n", "shop", "-f", dump).out
    assert "Kept: it had hints. A Service without hints gets them only below 20 %." in page
    assert "best up to 30 % overload" in page


def test_no_service_is_above_its_limit(dump: Path, capsys: Capture) -> None:
    """Where a limit is shown, not more than that stays in its zone."""
    heads, *lines = here(capsys, "explain", "services", "-A", "-f", dump).out.splitlines()
    end = heads.index("LIMIT") + len("LIMIT")
    compared = 0
    for line in lines:
        limit = line[end - 8 : end].strip(" %")
        in_zone = line[: heads.index("IN-ZONE") + len("IN-ZONE")].rstrip(" %").split()[-1]
        if limit != "-" and in_zone != "-":
            compared += 1
            assert float(in_zone) <= float(limit), line
    assert compared > 10


def test_a_note_of_ten_services_is_printed_once(dump: Path, capsys: Capture) -> None:
    """Ten headless Services share one line."""
    err = here(capsys, "explain", "services", "-A", "-f", dump).err
    assert err.count("is headless") == 1
    assert "Services shop/db-0, shop/db-1, shop/db-2 and 7 more: " in err
