"""How the program starts, its help, and its exit codes."""

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


def test_help_lists_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_without_a_command_help_is_printed(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Nothing to do means help, not an error."""
    assert here(capsys, *arguments) == here(capsys, "--help")


@pytest.mark.parametrize(
    "arguments", [("help", "version"), ("--help", "version"), ("version", "-h")]
)
def test_help_of_a_command(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    """A command's help may be requested in every order; it mentions the global flags."""
    result = here(capsys, *arguments)
    assert result.code == 0
    assert result.out.startswith("Usage: zonewise version")
    assert "zonewise version --client" in result.out
    assert "--kubeconfig" not in result.out
    assert "see 'zonewise --help'" in result.out


@pytest.mark.parametrize("name", [name for name in ENTRIES if not name.startswith("_")])
def test_every_flag_is_explained(name: str) -> None:
    """No flag is hidden, and each has a sentence; each example says what it does."""
    command = import_module(ENTRIES[name].module).command
    assert [line for line in command.examples if not line.partition("#")[2].strip()] == []
    for option in command.params:
        if isinstance(option, click.Option):
            assert not option.hidden, option.opts
            assert option.help is not None, option.opts
            assert re.search(r"[.:] ?(  \[default: .+\])?$|docs/\w+\.md\.$", option.help), (
                option.help
            )


@pytest.mark.system
def test_help_loads_neither_commands_nor_libraries() -> None:
    """Help and names for completion are printed without importing what commands need."""
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
def test_the_program_uses_the_name_it_was_called_by(
    tmp_path: Path, command: list[str], name: str
) -> None:
    """Usage and advice name the program as its user called it."""
    assert apart(tmp_path, "--help", program=command).out.startswith(f"Usage: {name} [OPTIONS]")
    result = apart(tmp_path, "vresion", program=command)
    assert result.sentence().endswith(f'did you mean "{name} version"?')


def test_the_version_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the version of the program."""
    result = here(capsys, "--version")
    assert result.code == 0
    assert result.out.startswith("zonewise 0.")


@pytest.mark.system
@pytest.mark.parametrize("arguments", [["--help"], ["up", "--empty"]])
def test_a_reader_that_goes_away(tmp_path: Path, arguments: list[str]) -> None:
    """A closed pipe ends the program without a message, also where tasks run in groups."""
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
    """Output that cannot be written is one sentence and exit code 2."""
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
    """Ctrl-C during a request ends the program at once and without a message."""
    connected = threading.Event()

    def talk(connection: socket.socket) -> None:
        connection.recv(1)  # the client knows by now that it is connected
        connected.set()
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
        assert connected.wait(LIMIT)
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


def test_a_fault_of_ours_has_a_traceback_with_v(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -v a fault is printed with its traceback."""
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
    """What a command returns is the exit code; None is success."""
    monkeypatch.setitem(program.ENTRIES, "do", CommandEntry("tests.cli.doing", "Do.", "Test"))
    command = Command("do", callback=lambda: value)
    monkeypatch.setitem(sys.modules, "tests.cli.doing", module(command))
    assert here(capsys, "do").code == code


def module(command: click.Command) -> object:
    """A stand-in for the module of a command."""
    return type("Module", (), {"command": command})
