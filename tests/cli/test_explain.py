"""``zonewise explain`` as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.cli.program import here
from tests.explain.dumps import Item, endpoint, listed, node, part, service

Capture = pytest.CaptureFixture[str]


def small() -> list[Item]:
    """Three zones; one Service has hints, one has too few endpoints."""
    return [
        node("n1", "zone-a", milli=4000),
        node("n2", "zone-b", milli=4000),
        node("n3", "zone-c", milli=3500),
        service(),
        part(
            [
                endpoint("10.0.0.1", on="n1", hints=["zone-a"]),
                endpoint("10.0.0.2", on="n2", hints=["zone-b"]),
                endpoint("10.0.0.3", on="n3", hints=["zone-c"]),
            ]
        ),
        service("api", namespace="shop"),
        part(
            [
                endpoint("10.0.1.1", on="n1"),
                endpoint("10.0.1.2", on="n1"),
                endpoint("10.0.1.3", on="n2"),
                endpoint("10.0.1.4", on="n3"),
                endpoint("10.0.1.5", on="n3", ready=False, terminating=True),
            ],
            of="api",
            name="api-1",
            namespace="shop",
        ),
    ]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A cluster in a file."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(small())))
    return path


HINTED = """\
Service default/web has hints (mode Auto): every zone has endpoints for its share of the \
traffic.

ZONE    NODES  CPU   SHARE  ENDPOINTS  MINIMUM  HINTED  OVERLOAD
zone-a      1    4  34.8 %          1        1       1     4.3 %
zone-b      1    4  34.8 %          1        1       1     4.3 %
zone-c      1  3.5  30.4 %          1        1       1    -8.7 %

ENDPOINT  ZONE    NODE  READY  FOR
10.0.0.1  zone-a  n1    yes    zone-a
10.0.0.2  zone-b  n2    yes    zone-b
10.0.0.3  zone-c  n3    yes    zone-c

TRAFFIC IN ITS ZONE
expected now              100.0 %
without hints              33.3 %
best below 20 % overload  100.0 %
The busiest endpoint gets 4.3 % more than average; hints are taken away above 30 %.
"""

REFUSED = """\
Service shop/api has no hints (mode Auto): 4 endpoints cannot serve 3 zones evenly: at best those \
of zone zone-b get 40 % more traffic than the average, allowed is below 20 %: needs 6, has 4.

ZONE    NODES  CPU   SHARE  ENDPOINTS  MINIMUM  HINTED  OVERLOAD
zone-a      1    4  34.8 %          2        2       0         -
zone-b      1    4  34.8 %          1        2       0         -
zone-c      1  3.5  30.4 %          1        2       0         -

ENDPOINT  ZONE    NODE  READY        FOR
10.0.1.1  zone-a  n1    yes          -
10.0.1.2  zone-a  n1    yes          -
10.0.1.3  zone-b  n2    yes          -
10.0.1.4  zone-c  n3    yes          -
10.0.1.5  zone-c  n3    terminating  -

TRAFFIC IN ITS ZONE
expected now              33.7 %
without hints             33.7 %
best below 20 % overload  94.8 %

What would help: Scale to 6 endpoints. Or allow more overload with the annotation \
zonewise.io/overload, now 20%/30%.
"""


def test_pages(dump: Path, capsys: Capture) -> None:
    """A page begins with the verdict and ends with what would help; the exit code is 0."""
    result = here(capsys, "explain", "service", "web", "-f", dump)
    assert (result.code, result.err, result.out) == (0, "", HINTED)
    result = here(capsys, "explain", "svc", "api", "-n", "shop", "-f", dump)
    assert (result.code, result.err, result.out) == (0, "", REFUSED)


def test_many(dump: Path, capsys: Capture) -> None:
    """All Services are a table, one line each."""
    result = here(capsys, "explain", "services", "-A", "-f", dump)
    assert result.code == 0
    assert result.out.splitlines() == [
        "NAMESPACE  NAME  MODE  HINTS         ENDPOINTS  IN-ZONE  WITHOUT    LIMIT",
        "default    web   Auto  yes                   3  100.0 %   33.3 %  100.0 %",
        "shop       api   Auto  no: Overload          4   33.7 %   33.7 %   94.8 %",
    ]
    result = here(capsys, "explain", "services", "-n", "empty", "-f", dump)
    assert (result.code, result.out) == (0, "There is no Service in namespace empty.\n")
    result = here(capsys, "explain", "services", "-f", dump, "-o", "json")
    assert [entry["service"] for entry in json.loads(result.out)] == ["web"]


def test_formats(dump: Path, capsys: Capture) -> None:
    """JSON, a line of JSON and YAML have the same content."""
    call = ("explain", "service", "web", "-f", dump, "-o")
    one = json.loads(here(capsys, *call, "json").out)
    line = here(capsys, *call, "jsonl").out
    assert line.count("\n") == 1
    assert one == json.loads(line) == yaml.safe_load(here(capsys, *call, "yaml").out)
    assert "file" not in one
    assert "&" not in here(capsys, *call, "yaml").out


def test_not_found(dump: Path, capsys: Capture) -> None:
    """A name that is not there is exit code 1 and one sentence, which knows other namespaces."""
    result = here(capsys, "explain", "service", "api", "-f", dump)
    assert result.code == 1
    assert result.sentence() == (
        "error: there is no Service api in namespace default; there is one in namespace shop: "
        "add -n shop"
    )
    result = here(capsys, "explain", "service", "nope", "-f", dump)
    assert (result.code, result.out) == (1, "")
    assert "explain services -A" in result.sentence()


def test_files_merge(tmp_path: Path, capsys: Capture) -> None:
    """Several files are one cluster, of JSON or of YAML."""
    items = small()
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(items[:3]))
    (tmp_path / "rest.json").write_text(json.dumps(listed(items[3:])))
    files = ("-f", tmp_path / "nodes.yaml", "-f", tmp_path / "rest.json")
    assert here(capsys, "explain", "service", "web", *files).out == HINTED


def test_folders(tmp_path: Path, capsys: Capture) -> None:
    """A folder has one cluster per file; one Service of several clusters is refused."""
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps(listed(small())))
    result = here(capsys, "explain", "services", "-A", "-f", tmp_path, "-o", "jsonl")
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [(line["file"], line["service"]) for line in found] == [
        ("one.json", "web"),
        ("one.json", "api"),
        ("two.json", "web"),
        ("two.json", "api"),
    ]
    table = here(capsys, "explain", "services", "-f", tmp_path).out
    assert [line.split()[0] for line in table.splitlines()] == ["FILE", "one.json", "two.json"]
    result = here(capsys, "explain", "service", "web", "-f", tmp_path)
    assert result.code == 2
    assert "give one file" in result.sentence()


@pytest.mark.parametrize(
    "arguments",
    [
        ("service",),
        ("services", "web"),
        ("service", "web", "-A"),
        ("pods",),
        ("service", "web", "-f", "/nowhere/at/all"),
        ("service", "web", "-f", "/dev/null", "--feature-gates", "Nonsense=true"),
        ("service", "web"),
    ],
)
def test_cannot_start(arguments: tuple[str, ...], capsys: Capture) -> None:
    """Usage, files and connections that do not work are exit code 2 and one sentence."""
    result = here(capsys, "explain", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_long_pages(tmp_path: Path, capsys: Capture) -> None:
    """A page shows fifty endpoints and says how many more there are."""
    endpoints = [endpoint(f"10.0.0.{n}", on=f"n{n % 3 + 1}") for n in range(60)]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([*small()[:4], part(endpoints)])))
    out = here(capsys, "explain", "service", "web", "-f", path).out
    assert out.count("\n10.0.0.") == 50
    assert "… and 10 more; -o json shows all" in out
    assert "with the slices as they are" in out
