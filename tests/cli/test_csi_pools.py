"""``zonewise csi pools``."""

from __future__ import annotations

import json

import pytest

from zonewise.cli.main import main

ZONES = ("--backend", "ceph-rbd", "--domain-labels", "topology.kubernetes.io/zone")
FILES = ("--backend", "ceph-fs", *ZONES[2:], "--domain", "zone=a")


def test_it_prints_commands_that_a_person_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of a shell script, for each domain in its order; nothing else is needed or touched."""
    assert main(["csi", "pools", *ZONES, "--domain", "zone=b", "--domain", "zone=a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ceph ", "# ")) for line in lines)
    assert [line for line in lines if " application set " in line] == [
        "ceph osd pool application set rbd-b rbd zonewise.zone b",
        "ceph osd pool application set rbd-a rbd zonewise.zone a",
    ]


def test_as_json_it_has_the_pools_with_their_domains(capsys: pytest.CaptureFixture[str]) -> None:
    """Each pool in the form of a class's list, with the words of its commands."""
    flags = ["--domain", "zone=a", "--pool-prefix", "csi", "-o", "json"]
    assert main(["csi", "pools", *ZONES, *flags]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["pools"]
    assert pool["poolName"] == "csi-a"
    assert pool["domainSegments"] == [{"domainLabel": "zone", "value": "a"}]
    assert pool["commands"][1] == ["ceph", "osd", "pool", "create", "csi-a", "replicated", "csi-a"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ((*ZONES,), "--domain is missing"),
        ((*ZONES, "--domain", "zone=a b"), "the value of 'zone', 'a b', may have only letters"),
        ((*ZONES, "--domain", "zone=$(reboot)"), "may have only letters"),
        ((*ZONES, "--domain", "zone="), "is empty"),
        ((*ZONES, "--domain", "rack=a"), "'rack' is not one of --domain-labels"),
        ((*ZONES, "--domain", "zone=a", "--domain", "zone=a"), "both the CRUSH bucket"),
        ((*ZONES, "--domain", "zone=a", "--pool-prefix", "a/b"), "is not a pool name"),
        ((*ZONES, "--domain", "zone=a", "--fs-name", "f"), "--fs-name is for"),
        (("--backend", "ceph-rbd", "--domain", "zone=a"), "--domain-labels is missing"),
        (("--backend", "ceph-fs", *ZONES[2:], "--domain", "zone=a"), "--fs-name is missing"),
        ((*FILES, "--fs-name=--yes-i-really-mean-it"), "is not the name of a file system"),
        ((*FILES, "--fs-name", "$(reboot)"), "is not the name of a file system"),
        ((*ZONES[2:], "--domain", "zone=a"), "'pools' is for Ceph"),
    ],
)
def test_what_it_cannot_use_is_refused_with_a_sentence(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], word: str
) -> None:
    """Bad domains and flags that do not fit are refused, and no command is printed."""
    assert main(["csi", "pools", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert word in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("action", [(), ("check",)])
def test_flags_of_pools_are_refused_elsewhere(
    capsys: pytest.CaptureFixture[str], action: tuple[str, ...]
) -> None:
    """A driver and its check would ignore them."""
    assert main(["csi", *action, "--config", "c", "--pool-prefix", "x"]) == 2
    assert "are for 'pools'" in capsys.readouterr().err
