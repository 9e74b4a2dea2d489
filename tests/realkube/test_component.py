"""Processes, ports and certificates of the control plane, without any Kubernetes."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.system_guard import starts_programs
from tools.realkube.certificates import Authority
from tools.realkube.component import Component, Guard, Port
from tools.realkube.controlplane import Settings, merged
from tools.realkube.errors import TAIL_LINES, RealKubeError, tail
from tools.realkube.guard import members

ROOT = Path(__file__).parents[2]
PARENT = """
import sys
from pathlib import Path
from tools.realkube.component import Component, Guard
folder = Path(sys.argv[1])
folder.mkdir()
guard = Guard(folder)
components = [
    Component(name, Path("/bin/sh"), ["-c", "sleep 600 & wait"], guard=guard, folder=folder)
    for name in ("one", "two")
]
for component in components:
    component.start()
print(guard.group, *(component.pid for component in components), flush=True)
sys.stdin.read()
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


@pytest.fixture
@starts_programs
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.release()


def shell(script: str, guard: Guard, folder: Path) -> Component:
    return Component("thing", Path("/bin/sh"), ["-c", script], guard=guard, folder=folder)


@pytest.mark.system
def test_nothing_survives_a_parent_killed_by_force(tmp_path: Path) -> None:
    """kill -9 of the parent ends components and their children and removes the folder."""
    folder = tmp_path / "cluster"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as parent:
        assert parent.stdout is not None
        group, *pids = map(int, parent.stdout.readline().split())
        assert all(os.getpgid(pid) == group for pid in pids)
        parent.kill()
    until(lambda: not any(map(alive, [group, *pids])))
    assert not folder.exists()
    assert members(group) == []


@pytest.mark.system
def test_release_ends_what_components_started(tmp_path: Path) -> None:
    """A grandchild whose parent is gone is found by its process group."""
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    guard = Guard(doomed)
    component = shell("sleep 600 & echo $!; wait", guard, doomed)
    component.start()
    until(lambda: component.log.read_text().endswith("\n"))
    grandchild = int(component.log.read_text())
    component.stop()
    assert alive(grandchild)
    guard.release()
    assert not alive(grandchild)
    assert not doomed.exists()


@pytest.mark.system
def test_a_guard_without_folder_removes_nothing(tmp_path: Path) -> None:
    """A guard removes only folders that it was given by name."""
    guard = Guard()
    component = shell("true", guard, tmp_path)
    component.start()
    component.stop()
    guard.release()
    assert component.log.exists()


def test_the_terminal_s_interrupt_does_not_reach_components(guard: Guard, tmp_path: Path) -> None:
    """Components are in the guard's process group, never in that of the test run."""
    component = shell("exec sleep 600", guard, tmp_path)
    component.start()
    assert os.getpgid(component.pid) == guard.group != os.getpgrp()
    component.stop()


def test_a_component_can_be_started_again(guard: Guard, tmp_path: Path) -> None:
    """Stop reaps the process; start makes another and appends to the same log."""
    component = shell("echo hello; exec sleep 600", guard, tmp_path)
    component.start()
    with pytest.raises(RealKubeError, match="thing is running already"):
        component.start()
    first = component.pid
    until(lambda: component.log.read_text() == "hello\n")
    component.stop()
    component.stop()
    assert not component.running
    with pytest.raises(RealKubeError, match="thing is not running"):
        assert component.pid
    component.start()
    assert component.pid != first
    until(lambda: component.log.read_text() == "hello\nhello\n")
    component.stop()
    assert not Path(f"/proc/{first}").exists()


def test_a_component_that_ends_while_starting_shows_the_end_of_its_log(
    guard: Guard, tmp_path: Path
) -> None:
    """The error is one sentence with the end of the log, without waiting for the timeout."""
    component = shell("echo unknown flag; exit 1", guard, tmp_path)
    component.start()
    with pytest.raises(RealKubeError, match=r"^thing ended while starting:\n    unknown flag$"):
        component.wait(lambda: False, timeout=60)
    component.stop()


def test_a_component_that_is_never_ready_is_given_up(guard: Guard, tmp_path: Path) -> None:
    """After the timeout the error says how long was waited."""
    component = shell("exec sleep 600", guard, tmp_path)
    component.start()
    with pytest.raises(RealKubeError, match=r"thing is not ready after 0 s:\n    \(no output\)"):
        component.wait(lambda: False, timeout=0)
    component.stop()


def test_components_see_nothing_of_our_environment(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy or a kubeconfig in the caller's environment does not change a component."""
    monkeypatch.setenv("KUBECONFIG", "/somewhere")
    component = shell("exec env", guard, tmp_path)
    component.start()
    until(lambda: not component.running)
    names = {line.partition("=")[0] for line in component.log.read_text().splitlines()}
    assert names <= {"PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_"}
    component.stop()


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    """However much a program printed, an error carries its last lines only, cut in width."""
    log = tmp_path / "log"
    log.write_text("".join(f"{number} {'x' * 5000}\n" for number in range(1000)))
    lines = tail(log).splitlines()
    assert len(lines) == TAIL_LINES
    assert lines[-1].startswith("    999 x")
    assert all(len(line) < 500 for line in lines)


def test_a_port_stays_ours_until_its_server_listens() -> None:
    """No other program can bind a reserved port; a server that may reuse addresses can, more than
    once.
    """
    port = Port()
    for _ in range(2):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port.number))
        with (
            socket.create_server(("127.0.0.1", port.number)) as server,
            socket.create_connection(("127.0.0.1", port.number)) as client,
        ):
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port.number))
    port.close()


def test_arguments_given_replace_ours() -> None:
    """A flag that is given again appears once, and a file of authorizers replaces the modes."""
    ours = ["--a=1", "--authorization-mode=Node,RBAC", "--b=2"]
    assert merged(ours, ["--b=3", "--c"]) == [*ours[:2], "--b=3", "--c"]
    config = "--authorization-config=/some/file"
    assert merged(ours, [config]) == ["--a=1", "--b=2", config]


@pytest.mark.parametrize(
    ("controllers", "runs"),
    [
        (("*",), True),
        ((), False),
        (("*", "-serviceaccount-controller"), False),
        (("*", "-serviceaccount"), False),
        (("serviceaccount-controller", "replicaset-controller"), True),
        (("replicaset-controller",), False),
    ],
)
def test_service_accounts_are_waited_for_if_their_controller_runs(
    controllers: tuple[str, ...], runs: bool
) -> None:
    """The start of a control plane waits for them exactly if their controller runs."""
    assert Settings(controllers=controllers).service_accounts is runs


def test_certificates_authenticate_both_sides(tmp_path: Path) -> None:
    """Strict TLS peers accept each other, and the user's groups are in the subject."""
    authority = Authority(tmp_path)

    def write(name: str, pair: tuple[bytes, bytes]) -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(pair))
        return path

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(write("server", authority.server(["localhost"], ["127.0.0.1"])))
    server.load_verify_locations(authority.certificate_file)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(authority.certificate_file))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_cert_chain(write("client", authority.user("ann", ["admins", "staff"])))

    ours, theirs = socket.socketpair()
    accepted: list[dict[str, object]] = []

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as connection:
            accepted.append(dict(connection.getpeercert() or {}))

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname="127.0.0.1") as connection:
        connection.recv(1)
    thread.join()
    assert accepted[0]["subject"] == (
        (("organizationName", "admins"),),
        (("organizationName", "staff"),),
        (("commonName", "ann"),),
    )
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0


def test_a_guard_ignores_sigterm(guard: Guard, tmp_path: Path) -> None:
    """A stray SIGTERM does not end the guard."""
    component = shell("exec sleep 600", guard, tmp_path)
    component.start()
    status = Path(f"/proc/{guard.group}/status")

    def ignores() -> bool:
        mask = next(line for line in status.read_text().splitlines() if line.startswith("SigIgn"))
        return bool(int(mask.split()[1], 16) & (1 << (signal.SIGTERM - 1)))

    until(ignores)
    os.kill(guard.group, signal.SIGTERM)
    assert alive(guard.group)
    component.stop()
