"""How the program starts, what it tells of itself, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import click
import pytest
from tests.cli.run_program import LIMIT, apart, environment, here
from tests.runtime.loopback import silent, tcp, write_kubeconfig

from zonewise.api.errors import ConfigError, NotFound, Status
from zonewise.cli import main as program
from zonewise.cli.main import ENTRIES
from zonewise.cli.program.command import Command, CommandEntry

SCRIPTS = Path(sys.executable).parent


def test_help_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Help groups the commands, shows examples and the flags that every command knows."""
    result = here(capsys, "--help")
    assert (result.code, result.err) == (0, "")
    for words in (
        "Zonewise makes a Kubernetes cluster aware of where things are",
        "Try it:\n  up ",
        "About this program:\n",
        "Examples:\n  zonewise up ",
        "Global flags:\n",
        "--request-timeout TIME",
        "-A, --all-namespaces",
    ):
        assert words in result.out
    assert "__complete" not in result.out


@pytest.mark.parametrize("arguments", [(), ("help",), ("-h",), ("--context", "x"), ("-v", "help")])
def test_help_is_what_one_gets_without_a_command(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Nothing to do means help, not an error."""
    assert here(capsys, *arguments) == here(capsys, "--help")


@pytest.mark.parametrize(
    "arguments", [("help", "version"), ("--help", "version"), ("version", "-h")]
)
def test_help_of_a_command(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    """A command's help may be asked for in every order; global flags are told of, not repeated."""
    result = here(capsys, *arguments)
    assert result.code == 0
    assert result.out.startswith("Usage: zonewise version")
    assert "zonewise version --client" in result.out
    assert "--kubeconfig" not in result.out
    assert "see 'zonewise --help'" in result.out


@pytest.mark.parametrize("name", [name for name in ENTRIES if not name.startswith("_")])
def test_every_flag_is_explained(name: str) -> None:
    """No flag is hidden, and each has a sentence."""
    made = import_module(ENTRIES[name].module).command
    for one in made.params:
        if isinstance(one, click.Option):
            assert not one.hidden, one.opts
            assert one.help is not None, one.opts
            assert re.search(r"[.:] ?(  \[default: .+\])?$|docs/\w+\.md\.$", one.help), one.help


@pytest.mark.system
def test_help_loads_neither_commands_nor_libraries() -> None:
    """Help and names for completion are there without importing what commands need."""
    heavy = ("aiohttp", "msgspec", "yaml", "structlog", "rich", "zonewise.api", "zonewise.runtime")
    code = (
        "import sys; from zonewise.cli.main import main; main(['--help']);"
        "main(['__complete', 'ver']);"
        f"sys.exit(str([name for name in {heavy!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stderr == "[]\n"


@pytest.mark.system
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ([str(SCRIPTS / "zonewise")], "zonewise"),
        ([str(SCRIPTS / "kubectl-zonewise")], "kubectl zonewise"),
        ([sys.executable, "-m", "zonewise"], "python -m zonewise"),
    ],
)
def test_the_program_knows_its_name(tmp_path: Path, command: list[str], name: str) -> None:
    """Usage and advice call the program as its user did."""
    assert apart(tmp_path, "--help", program=command).out.startswith(f"Usage: {name} [OPTIONS]")
    result = apart(tmp_path, "vresion", program=command)
    assert result.sentence().endswith(f'did you mean "{name} version"?')


def test_the_version_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """--version is the shortest way to the version of the program."""
    result = here(capsys, "--version")
    assert result.code == 0
    assert result.out.startswith("zonewise 0.")


@pytest.mark.system
@pytest.mark.parametrize("arguments", [["--help"], ["up", "--empty"]])
def test_a_reader_that_goes_away(tmp_path: Path, arguments: list[str]) -> None:
    """A closed pipe ends the program without a word, also where tasks run in groups."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "zonewise", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
        timeout=LIMIT,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.system
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk(tmp_path: Path) -> None:
    """Output that cannot be written is one sentence and not success."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "zonewise", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(tmp_path),
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: stopped: no space left on device; ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.system
def test_ctrl_c_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a request ends the program at once and without a word."""
    asked = threading.Event()

    def talk(connection: socket.socket) -> None:
        connection.recv(1)  # the client knows by now that it is connected
        asked.set()
        silent(connection)

    with tcp(talk) as port:
        path = write_kubeconfig(tmp_path / "config", server=f"http://127.0.0.1:{port}")
        running = subprocess.Popen(
            [
                *(sys.executable, "-m", "zonewise", "version", "--kubeconfig", str(path)),
                *("--request-timeout", "5m"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(tmp_path),
        )
        assert asked.wait(LIMIT)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=LIMIT)
    assert (running.returncode, err) == (130, b"")


def failing(error: BaseException) -> click.Command:
    def run() -> None:
        raise error

    return Command("fail", callback=run)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigError("no; do this"), 2, "error: no; do this"),
        (NotFound(Status(message="gone; look", code=404)), 1, "error: gone; look"),
        (ExceptionGroup("g", [ConfigError("inner; x")]), 2, "error: inner; x"),
        (ConfigError("two\nlines;\tone sentence"), 2, "error: two lines; one sentence"),
        (KeyError("x"), 2, "error: this is a fault in zonewise (KeyError: 'x'); -v shows where"),
        (
            PermissionError(13, "Permission denied", "/f"),
            2,
            "/f: permission denied; free disk space",
        ),
    ],
)
def test_exit_codes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    says: str,
) -> None:
    """1 is a refusal or nothing found, 2 is that the work could not start; one sentence each."""
    monkeypatch.setattr(program, "_drop_output", lambda: None)
    monkeypatch.setitem(program.ENTRIES, "fail", CommandEntry("tests.cli.failing", "Fail.", "Test"))
    monkeypatch.setitem(sys.modules, "tests.cli.failing", module(failing(error)))
    result = here(capsys, "fail")
    assert result.code == code
    assert says in result.sentence()


def test_a_fault_of_ours_shows_where_if_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback is for those who want it."""
    monkeypatch.setitem(program.ENTRIES, "fail", CommandEntry("tests.cli.failing", "Fail.", "Test"))
    monkeypatch.setitem(sys.modules, "tests.cli.failing", module(failing(KeyError("x"))))
    result = here(capsys, "fail", "-v")
    assert result.code == 2
    assert "Traceback" in result.err


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (1, 1)])
def test_a_command_may_give_the_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: int | None,
    code: int,
) -> None:
    """What a command returns is the exit code; nothing is success."""
    monkeypatch.setitem(program.ENTRIES, "do", CommandEntry("tests.cli.doing", "Do.", "Test"))
    made = Command("do", callback=lambda: value)
    monkeypatch.setitem(sys.modules, "tests.cli.doing", module(made))
    assert here(capsys, "do").code == code


def module(command: click.Command) -> object:
    """Something that looks like the module of a command."""
    return type("Module", (), {"command": command})
