"""Programs that print credentials: good, bad and slow ones."""

import asyncio
import fcntl
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from zonewise.api.errors import ConfigError, ConnectionFailed, ZonewiseError
from zonewise.runtime.config.credentials import Certificate, Credential
from zonewise.runtime.config.exec_plugin import OUTPUT_LIMIT, ExecCredentials, Output
from zonewise.runtime.config.kubeconfig import ExecPlugin

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a shell script and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "plugin"
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def printed(version: str = V1, **status: Any) -> str:
    answer = {"kind": "ExecCredential", "apiVersion": version, "status": status}
    return f"echo '{json.dumps(answer)}'"


def source(
    command: str,
    *,
    version: str = V1,
    interactive: bool = False,
    timeout: float | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    cluster: dict[str, object] | None = None,
    **fields: Any,
) -> ExecCredentials:
    plugin = ExecPlugin(api_version=version, command=command, **fields)
    return ExecCredentials(
        plugin, user="u", cluster=cluster, timeout=timeout, interactive=interactive, clock=clock
    )


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().split())


@pytest.mark.system
@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_a_token(script: Script, version: str) -> None:
    """Both versions of the protocol give a bearer token."""
    plugin = source(script(printed(version, token="t")), version=version)
    assert await plugin.current() == Credential("Bearer t")


@pytest.mark.system
async def test_a_client_certificate(script: Script) -> None:
    """A plugin may give a certificate and key instead of, or with, a token."""
    plugin = source(script(printed(clientCertificateData="C", clientKeyData="K", token="t")))
    assert await plugin.current() == Credential("Bearer t", Certificate(b"C", b"K"))


@pytest.mark.system
async def test_what_the_plugin_gets(script: Script, tmp_path: Path) -> None:
    """Arguments, environment and, if configured, the cluster are passed to the plugin."""
    text = 'echo "$1|$2|$WHO" > call; echo "$KUBERNETES_EXEC_INFO" > info;' + printed(token="t")
    plugin = source(
        script(text),
        arguments=("get token", "--x"),
        environment={"WHO": "me"},
        provide_cluster_info=True,
        cluster={"server": "https://k", "config": {"n": 7}},
    )
    await plugin.current()
    assert (tmp_path / "call").read_text() == "get token|--x|me\n"
    assert json.loads((tmp_path / "info").read_text()) == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {"interactive": False, "cluster": {"server": "https://k", "config": {"n": 7}}},
    }


@pytest.mark.system
async def test_the_cluster_is_passed_only_if_configured(script: Script, tmp_path: Path) -> None:
    """Without provideClusterInfo the plugin learns nothing about the cluster."""
    text = 'echo "$KUBERNETES_EXEC_INFO" > info;' + printed(token="t")
    await source(script(text), cluster={"server": "https://k"}).current()
    assert "cluster" not in json.loads((tmp_path / "info").read_text())["spec"]


@pytest.mark.system
async def test_a_credential_is_kept_until_it_expires(script: Script, tmp_path: Path) -> None:
    """The plugin runs once for many requests, and again when its token has expired."""
    now = 1_700_000_000.0
    text = "echo x >> runs;" + printed(
        token="t", expirationTimestamp="2023-11-14T22:14:20.000000001Z"
    )
    plugin = source(script(text), clock=lambda: now)
    await asyncio.gather(*(plugin.current() for _ in range(5)))
    assert runs(tmp_path) == 1
    now += 54.0
    await plugin.current()
    assert runs(tmp_path) == 1
    now += 1.0
    await plugin.current()
    assert runs(tmp_path) == 2


@pytest.mark.system
async def test_a_rejected_credential_is_renewed_once(script: Script, tmp_path: Path) -> None:
    """Many requests that fail with the same token cause one run, and share its result."""
    text = "echo x >> runs; N=$(wc -l < runs);" + printed(token="t").replace('"t"', "\"t'$N'\"")
    plugin = source(script(text))
    rejected = await plugin.current()
    renewed = await asyncio.gather(*(plugin.renew(rejected) for _ in range(5)))
    assert set(renewed) == {Credential("Bearer t2")}
    assert runs(tmp_path) == 2


@pytest.mark.system
async def test_the_same_credential_again_is_no_offer(script: Script) -> None:
    """If the plugin prints the rejected credential again, it is not tried again."""
    plugin = source(script(printed(token="t")))
    assert await plugin.renew(await plugin.current()) is None


@pytest.mark.system
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exit 3", "failed with exit code 3; run it by hand"),
        ("echo 'first' >&2; echo 'no session, run aws login' >&2; exit 1", "(no session, run aws"),
        ("kill -9 $$", "was killed by signal 9"),
        ("printf '\\033[31mred\\nbad \\033[0mgreen' >&2; exit 1", r"(bad  [0mgreen)"),
        ("echo hello", "printed something that is not an ExecCredential"),
        ("printf '\\377\\376'", "printed something that is not an ExecCredential"),
        (":", "printed something that is not an ExecCredential"),
        ("echo '[]'", "printed something that is not an ExecCredential"),
        ("echo '{\"status\": 7}'", "printed something that is not an ExecCredential"),
        ("echo '{}'", f"did not print an ExecCredential of {V1}"),
        (printed(V1BETA1, token="t"), f"did not print an ExecCredential of {V1}"),
        (printed(), "printed neither a token nor a client certificate"),
        (printed(token=""), "printed neither a token nor a client certificate"),
        (printed(clientCertificateData="C"), "printed a client certificate or its key, not both"),
        (printed(token="t", clientKeyData="K"), "printed a client certificate or its key"),
        (printed(token="t", expirationTimestamp="soon"), "printed something that is not an Exec"),
        (printed(token="t", expirationTimestamp="2030-01-01T00:00:00"), "is not an ExecCredential"),
    ],
)
async def test_plugins_that_fail(script: Script, text: str, says: str) -> None:
    """The error is one sentence with the plugin, its user and its last line of output."""
    command = script(text)
    with pytest.raises(ConnectionFailed) as error:
        await source(command).current()
    assert says in str(error.value)
    assert f'plugin {command} of user "u"' in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.system
async def test_a_failure_is_not_cached(script: Script) -> None:
    """After a failure the plugin runs again with the next request."""
    plugin = source(script("test -e good || { : > good; exit 1; };" + printed(token="t")))
    with pytest.raises(ConnectionFailed):
        await plugin.current()
    assert await plugin.current() == Credential("Bearer t")


async def test_a_missing_program(tmp_path: Path) -> None:
    """The error about a missing program has the hint how to install it."""
    plugin = source("no-such-plugin", install_hint="apt install\nno-such-plugin")
    with pytest.raises(ConfigError, match=r"is not installed .* install it: apt install no-such"):
        await plugin.current()
    plain = tmp_path / "plain"
    plain.write_text("not executable")
    with pytest.raises(ConfigError, match="not executable; install it or correct the kubeconfig"):
        await source(str(plain)).current()


@pytest.mark.system
async def test_a_program_in_an_unknown_format(tmp_path: Path) -> None:
    """An executable that the system cannot run is reported in the system's words."""
    path = tmp_path / "odd"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(ConfigError, match="cannot be run: exec format error"):
        await source(str(path)).current()


@pytest.mark.system
async def test_a_hanging_program_is_killed_with_its_children(
    script: Script, tmp_path: Path
) -> None:
    """A plugin that does not end in time is killed with all its processes."""
    command = script("sleep 600 & echo $! > child; mv child pid; wait")
    with pytest.raises(ConnectionFailed, match=r"did not finish within 1 s and was stopped"):
        await source(command, timeout=1.0).current()
    child = int((tmp_path / "pid").read_text())
    await until(lambda: not running(child))


@pytest.mark.system
async def test_children_of_a_finished_program_are_left_running(
    script: Script, tmp_path: Path
) -> None:
    """A plugin may start a helper; only a plugin that hangs is killed with its children."""
    text = "sleep 600 > /dev/null 2>&1 & echo $! > pid;" + printed(token="t")
    assert await source(script(text)).current() == Credential("Bearer t")
    helper = int((tmp_path / "pid").read_text())
    assert running(helper)
    os.kill(helper, signal.SIGKILL)


@pytest.mark.system
async def test_a_cancelled_wait_kills_the_program(script: Script, tmp_path: Path) -> None:
    """A cancelled request does not leave the plugin running."""
    waiting = asyncio.create_task(source(script("echo $$ > p; mv p pid; sleep 600")).current())
    await until((tmp_path / "pid").exists)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not running(int((tmp_path / "pid").read_text()))


@pytest.mark.system
@pytest.mark.parametrize("turns", range(8))
async def test_a_start_that_is_cancelled_leaves_nothing(
    script: Script, tmp_path: Path, turns: int
) -> None:
    """Wherever a start is cancelled, neither the program nor its children are left running."""
    text = "exec 9> lock; flock 9; (sleep 600) & echo $$ > p; mv p pid; wait"
    waiting = asyncio.create_task(source(script(text)).current())
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # what was killed lets go of it


@pytest.mark.system
async def test_endless_output_is_bounded(script: Script) -> None:
    """A program that prints without end is stopped, and only a part of its output is stored."""
    with pytest.raises(ConnectionFailed, match="did not finish"):
        await source(script("exec cat /dev/zero"), timeout=0.5).current()
    output = Output()
    for _ in range(3):
        output.pipe_data_received(1, bytes(OUTPUT_LIMIT - 1))
        output.pipe_data_received(2, b"x")
    assert (len(output.stdout), len(output.stderr)) == (OUTPUT_LIMIT, 3)


@pytest.mark.system
async def test_a_person_is_asked_only_at_a_terminal(script: Script) -> None:
    """Always needs a terminal; Never gets no input even at one."""
    command = script(printed(token="t"))
    with pytest.raises(ConfigError, match="needs interactive input"):
        await source(command, interactive_mode="Always").current()
    text = "case $KUBERNETES_EXEC_INFO in *'\"interactive\": true'*) exit 9;; esac;"
    silent = source(
        script(text + "read x && exit 8;" + printed(token="t")),
        interactive=True,
        interactive_mode="Never",
    )
    assert await silent.current() == Credential("Bearer t")


@pytest.mark.system
async def test_at_a_terminal_the_plugin_may_ask(script: Script, tmp_path: Path) -> None:
    """At a terminal the plugin is told that it may ask."""
    text = 'echo "$KUBERNETES_EXEC_INFO" > info;' + printed(token="t")
    await source(script(text), interactive=True).current()
    assert json.loads((tmp_path / "info").read_text())["spec"]["interactive"] is True


@pytest.mark.system
async def test_a_printed_token_is_never_shown(script: Script) -> None:
    """An error about the output does not repeat the output."""
    for text in ("echo 'hush'", printed(V1BETA1, token="hush"), printed(token="hu\\nsh")):
        with pytest.raises(ZonewiseError) as error:
            await source(script(text)).current()
        assert "hush" not in str(error.value)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another process by polling."""
    async with asyncio.timeout(30):
        async for _ in ticks():
            if condition():
                return


async def ticks() -> AsyncIterator[None]:
    while True:
        yield
        await asyncio.sleep(0.01)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
