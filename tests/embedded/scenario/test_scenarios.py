"""Every scenario in ``examples/scenarios`` succeeds, in virtual time, on a whole cluster."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.seed.eks_dump import eks_dump
from tests.embedded.virtual_cluster import EPOCH, MEMORY

from zonewise.api.errors import ConfigError
from zonewise.api.gates import FeatureGates
from zonewise.cli.local.composition import open_folder_driver
from zonewise.embedded.scenario.assertions import Assertion
from zonewise.embedded.scenario.player import play_scenario
from zonewise.embedded.scenario.scenario import load_scenario, parse_scenario
from zonewise.embedded.seed.dump_import import import_dump

FILES = sorted(Path("examples/scenarios").glob("*.yaml"))
TEXTS = {file.stem: file.read_bytes() for file in FILES}
WHOLE = b"""
about: all fields
cluster: {zones: [a, b], nodesPerZone: 1, cpu: [8], podStart: 1s, workloadRemoval: delete}
seed: 7
workloads: shop
always: ready shop/web >= 1
steps:
- {at: 0s, do: fail node a-1, expect: nodes == 1, within: 1m30s}
"""


async def play(text: bytes, dump: Sequence[dict[str, Any]] | None = None) -> tuple[bool, list[str]]:
    """Play a scenario; gives whether it succeeded, and its lines."""
    loop = asyncio.get_running_loop()
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as folder:
        fine = await play_scenario(
            parse_scenario(text, "test"),
            Path(folder),
            clock=lambda: EPOCH + loop.time(),
            print_line=lines.append,
            gates=FeatureGates(),
            volumes=open_folder_driver,
            dump=dump,
        )
    return fine, lines


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_every_scenario_succeeds(file: Path) -> None:
    """In every scenario each expectation is met in time, and invariants hold at every pod event."""
    fine, lines = await play(TEXTS[file.stem])
    assert fine, "\n".join(lines)
    scenario = load_scenario(file)
    assert sum("✓ always" in line for line in lines) == len(scenario.always)
    assert sum("→" in line for line in lines) == sum(len(step.do) for step in scenario.steps)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_no_workload_has_more_ready_pods_than_desired() -> None:
    """Ready pods never exceed the desired ones, also when a zone is healed."""
    _, lines = await play(TEXTS["zone-outage"])
    pairs = [
        tuple(map(int, pair.split("/")))
        for line in lines
        if "ready: " in line
        for pair in re.findall(r" (\d+/\d+)", line)
    ]
    assert pairs
    assert [pair for pair in pairs if pair[0] > pair[1]] == []


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_scenario_is_played_on_the_shape_of_a_dump() -> None:
    """Nodes and workloads are the dump's, without the demo; pods wait for their zone's data."""
    dump = import_dump(eks_dump(), keep_placement=True).objects
    fine, lines = await play(
        b"""
workloads: [{apiVersion: v1, kind: Namespace, metadata: {name: own}}]
steps:
- {at: 0s, expect: [nodes == 40, ready shop/web == 30, ready shop/kafka == 6], within: 3m}
- {at: 5m, do: fail zone eu-west-1a, expect: nodes in eu-west-1a == 0, within: 2m}
- {at: 15m, expect: [ready shop/web == 30, ready shop/kafka == 3]}
- {at: 16m, do: heal zone eu-west-1a, expect: ready shop/kafka == 6, within: 2m}
""",
        dump,
    )
    assert fine, "\n".join(lines)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_refused_object_of_a_dump_does_not_fail_the_scenario() -> None:
    """A refused object of a dump is a line of the output."""
    bad = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "Bad Name"}, "spec": {}}
    fine, lines = await play(b"steps: [{at: 0s, expect: nodes == 0}]", [bad])
    assert fine
    assert 'left out: Service default/Bad Name: Service "Bad Name" is invalid' in lines[0]


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_the_same_scenario_plays_the_same() -> None:
    """With the same seed every line is the same."""
    text = TEXTS["rolling-update"]
    assert await play(text) == await play(text)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_failures_are_lines() -> None:
    """Unmet expectations, broken invariants and refused actions fail a scenario with a line."""
    fine, lines = await play(
        b"""
always: ready shop/web >= 9
steps:
- {at: 0s, expect: unavailable shop/web == 0, within: 1m}
- {at: 2m, do: [scale shop/web to 3, scale shop/nobody to 3], expect: pods shop/web == 4}
- {at: 3m, expect: in-zone shop/nobody >= 1%}
"""
    )
    assert not fine
    text = "\n".join(lines)
    assert "✗ always ready shop/web >= 9, but it is 8" in text
    assert "✗ scale shop/nobody to 3: there is no workload shop/nobody" in text
    assert "✗ pods shop/web == 4, but it is 3" in text
    assert "✗ in-zone shop/nobody >= 1%, but it is not there" in text
    assert "always ready" not in lines[-1]


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_an_invariant_of_a_missing_object_is_broken() -> None:
    """An invariant about a workload or a Service that does not exist fails with a line."""
    fine, lines = await play(
        b"""
always: [ready shop/nobody >= 5, in-zone shop/nobody >= 1%, nodes == 9]
workloads: []
steps: [{at: 0s, expect: nodes == 9, within: 1m}]
"""
    )
    assert not fine
    text = "\n".join(lines)
    assert "✗ always ready shop/nobody >= 5, but it is not there" in text
    assert "✗ always in-zone shop/nobody >= 1%, but it is not there" in text
    assert text.count("✓ always") == 1
    assert "✓ always nodes == 9 (at worst 9)" in text


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_an_unknown_node_fails_the_scenario() -> None:
    """Each action on an unknown node is a line that fails the scenario, and starts no drain."""
    fine, lines = await play(
        b"""
workloads: []
steps: [{at: 0s, do: [drain zz, cordon zz, remove node zz], expect: drains == 0, within: 1m}]
"""
    )
    assert not fine
    text = "\n".join(lines)
    for action in ("drain zz", "cordon zz", "remove node zz"):
        assert f"✗ {action}: there is no node zz" in text
    assert "✓ drains == 0" in text


def test_a_file_is_read_as_a_whole() -> None:
    """All fields of a file are read."""
    scenario = parse_scenario(WHOLE, "test")
    assert scenario.seed == 7
    assert scenario.removal == "delete"
    assert [node["metadata"]["name"] for node in scenario.nodes] == ["a-1", "b-1"]
    assert scenario.always == (Assertion.parse("ready shop/web >= 1"),)
    assert scenario.steps[0].within == 90


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps: [", "is not YAML"),
        ("about: x", "the file lacks steps"),
        ("steps: [{at: 0s}]\nsteep: 1", "the file has steep, which is unknown"),
        ("steps: [{at: soon}]", '"soon" is not a time'),
        ("steps: [{at: 0s, do: dance}]", 'unknown action "dance"'),
        ("steps: [{at: 0s, expect: all is well}]", '"all is well" is not an expectation'),
        ("steps: [{at: 0s, expect: mood == 3}]", "unknown measure mood"),
        ("steps: [{at: 0s, expect: ready == 3}]", "names no workload or Service"),
        ("steps: []", "it has no steps"),
        ("steps: [{at: 2s}, {at: 1s}]", "not in the order of their times"),
        ("steps: [{at: 0s}]\ncluster: {zones: [A]}", '"A" is not a zone name'),
        ("steps: [{at: 0s}]\nworkloads: bank", 'workloads is "shop" or a list'),
    ],
)
def test_a_bad_file_is_one_sentence(text: str, says: str) -> None:
    """The error in a scenario names its file, before anything starts."""
    with pytest.raises(ConfigError) as caught:
        parse_scenario(text.encode(), "bad.yaml")
    assert str(caught.value).startswith("bad.yaml is no")
    assert says in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """The error for a missing scenario names the file."""
    with pytest.raises(ConfigError, match="cannot read the scenario"):
        load_scenario(tmp_path / "nobody.yaml")
