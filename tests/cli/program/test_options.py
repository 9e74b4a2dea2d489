"""Flags: their meaning and their order."""

from __future__ import annotations

import sys
from typing import Any

import click
import pytest
from tests.cli.run_program import here

from zonewise.cli import main as program
from zonewise.cli.program.command import Command, CommandEntry, CommandGroup
from zonewise.cli.program.options import (
    Options,
    add_options,
    all_namespaces_option,
    files_option,
    note_namespace_ignored,
    output_option,
    parse_duration,
)

Seen = list[tuple[Options, dict[str, Any]]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A command ``show`` that records its arguments, and a group ``deep`` with the same command."""
    given: Seen = []

    @click.command("show", cls=Command)
    @add_options(output_option("table", "json"), all_namespaces_option(), files_option())
    @click.argument("names", nargs=-1)
    @click.pass_obj
    def show(options: Options, /, **values: Any) -> None:
        given.append((options, values))

    entry = CommandEntry("tests.cli.shown", "Show.", "Test")
    deep = CommandGroup("deep", entries={"show": entry})
    monkeypatch.setitem(program.ENTRIES, "show", entry)
    monkeypatch.setitem(program.ENTRIES, "deep", CommandEntry("tests.cli.deep", "Deep.", "Test"))
    monkeypatch.setitem(sys.modules, "tests.cli.shown", type("Module", (), {"command": show}))
    monkeypatch.setitem(sys.modules, "tests.cli.deep", type("Module", (), {"command": deep}))
    return given


ALL = (
    *("--kubeconfig", "k", "--context=c", "--cluster", "cl", "--user", "u", "-n", "ns"),
    *("--as", "jane", "--as-group=a", "--as-group", "b", "--as-uid", "7"),
    *("--request-timeout", "1m", "-vv", "--log-format", "json"),
)
EXPECTED = Options(
    kubeconfig="k",
    context="c",
    cluster="cl",
    user="u",
    namespace="ns",
    act_as="jane",
    act_as_groups=("a", "b"),
    act_as_uid="7",
    request_timeout=60.0,
    verbose=2,
    log_format="json",
)


@pytest.mark.parametrize("path", [("show",), ("deep", "show")])
@pytest.mark.parametrize("split", range(0, len(ALL) + 1, 4))
def test_global_flags_may_be_anywhere(
    capsys: pytest.CaptureFixture[str], seen: Seen, path: tuple[str, ...], split: int
) -> None:
    """Global flags may be before the command, after it, or on both sides."""
    flags = list(ALL)
    while split < len(flags) and not flags[split].startswith("-"):
        split += 1
    before, after = flags[:split], flags[split:]
    result = here(capsys, *before, *path, *after)
    assert (result.code, result.err) == (0, "")
    assert seen[0][0] == EXPECTED


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "-A", "-ojson", "-f", "a", "-f-", "x", "y"),
        ("-Ao", "json", "-fa", "show", "x", "-f", "-", "y"),
        ("--output=json", "-A", "--filename", "a", "-f", "-", "show", "x", "y"),
        ("-vAojson", "-fa", "show", "-f=-", "x", "y"),
    ],
)
def test_shared_flags_may_be_anywhere(
    capsys: pytest.CaptureFixture[str], seen: Seen, arguments: tuple[str, ...]
) -> None:
    """-A, -o and -f may precede the command, too, with joined or separate values."""
    result = here(capsys, *arguments)
    assert (result.code, result.err) == (0, "")
    values = seen[0][1]
    assert values["all_namespaces"] is True
    assert values["output"] == "json"
    assert [name.removeprefix("=") for name in values["files"]] == ["a", "-"]
    assert values["names"] == ("x", "y")


def test_nothing_given(capsys: pytest.CaptureFixture[str], seen: Seen) -> None:
    """Without flags everything is unset."""
    here(capsys, "show")
    assert seen == [
        (Options(), {"all_namespaces": False, "output": None, "files": (), "names": ()})
    ]


def test_the_later_flag_wins(capsys: pytest.CaptureFixture[str], seen: Seen) -> None:
    """Of a flag that is given twice, the last value counts."""
    here(capsys, "-n", "one", "show", "-n", "two")
    assert seen[0][0].namespace == "two"


def test_after_two_dashes_nothing_is_a_flag(capsys: pytest.CaptureFixture[str], seen: Seen) -> None:
    """Names that look like flags can be given after --."""
    here(capsys, "show", "--", "-n", "x")
    assert seen[0][1]["names"] == ("-n", "x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("5", 5.0), ("1.5", 1.5), ("10s", 10.0), ("1m30s", 90.0), ("2h", 7200.0)],
)
def test_durations(text: str, seconds: float) -> None:
    """Times are written as for kubectl; a bare number is seconds."""
    assert parse_duration(text) == seconds


def test_milliseconds() -> None:
    """A thousandth of a second is the smallest unit."""
    assert parse_duration("500ms") == pytest.approx(0.5)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1x", "1s ago", "1 s", "1h-5m", "٣s", "inf", "1e3"]
)
def test_bad_durations(text: str) -> None:
    """Other texts are refused with an example."""
    with pytest.raises(ValueError, match="write it like 10s"):
        parse_duration(text)


def test_programs_log_by_default() -> None:
    """Long-running programs log as with -v, and more if more is requested."""
    assert [Options(verbose=given).for_serving().verbose for given in (0, 1, 2)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("namespace", "expected"), [(None, ""), ("a\x1b[2J", "-n a\\x1b[2J has no")]
)
def test_a_namespace_without_effect(
    capsys: pytest.CaptureFixture[str], namespace: str | None, expected: str
) -> None:
    """If -n was given, a note says that it has no effect, with control characters escaped."""
    note_namespace_ignored(Options(namespace=namespace), "of all namespaces")
    printed = capsys.readouterr().err
    assert expected in printed
    assert bool(printed) == bool(namespace)
