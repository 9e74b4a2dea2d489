"""Credentials from a program: ``client.authentication.k8s.io`` v1 and v1beta1.

The program runs when there is no credential yet, when the last one has expired, and once after a
401. It is bounded in time: what hangs is killed, with the processes it started. Bounded too: what
it may print.

A program that may talk to a person inherits the terminal, stays in its session and gets more time
unless a limit was set by hand. All others get no input, and the last line of what they complain
about becomes part of our one sentence.

Plugins are the user's own configuration; what they print is still untrusted, and their standard
output, which has the token, is never shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec

from zonewise.api.errors import ConfigError, ConnectionFailed
from zonewise.runtime.config.credentials import (
    Certificate,
    Clock,
    Credential,
    FetchedCredentials,
    bearer,
    reason,
)
from zonewise.runtime.config.kubeconfig import ExecPlugin

TIMEOUT = 30.0
INTERACTIVE_TIMEOUT = 300.0
OUTPUT_LIMIT = 1 << 20
COMPLAINT_LIMIT = 300
MARGIN = 5.0


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: _Status | None = None


class ExecCredentials(FetchedCredentials):
    """What a plugin printed last, for as long as it is valid.

    ``cluster`` is what the plugin gets about the cluster if it requests that. ``interactive`` says
    whether a user can be prompted; None looks at standard input.
    """

    def __init__(
        self,
        plugin: ExecPlugin,
        *,
        user: str,
        cluster: Mapping[str, object] | None = None,
        timeout: float | None = None,
        interactive: bool | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Clock = time.time,
    ) -> None:
        super().__init__(margin=MARGIN, clock=clock)
        self._plugin = plugin
        self._user = user
        self._cluster = cluster
        self._timeout = timeout
        self._interactive = interactive
        self._environ = environ

    async def fetch(self) -> tuple[Credential, float]:
        """Run the program."""
        plugin = self._plugin
        interactive = self._may_ask()
        executable = shutil.which(plugin.command, path=self._environ.get("PATH", os.defpath))
        if executable is None:
            hint = " ".join(plugin.install_hint.split())[:COMPLAINT_LIMIT]
            advice = f": {hint}" if hint else " or correct the kubeconfig"
            raise self._config_error("is not installed or not executable", f"install it{advice}")
        seconds = self._timeout
        if seconds is None:
            seconds = INTERACTIVE_TIMEOUT if interactive else TIMEOUT
        starting = asyncio.ensure_future(
            asyncio.get_running_loop().subprocess_exec(
                Output,
                executable,
                *plugin.arguments,
                env=self._environment(interactive),
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,
                start_new_session=not interactive,
            )
        )
        try:
            process, output = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A start that is cancelled half-way kills the program only, and then waits until those
            # that it started close its output.
            with contextlib.suppress(OSError, ValueError):
                await _end(*await starting, group=not interactive)
            raise
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else "its arguments are not text"
            raise self._config_error(f"cannot be run: {why}", "correct the kubeconfig") from error
        try:
            async with asyncio.timeout(seconds if seconds > 0 else None):
                await output.complete.wait()
        except TimeoutError:
            raise self._connection_failed(
                f"did not finish within {seconds:g} s and was stopped",
                "run it by hand to see what it waits for, or allow more with --request-timeout",
            ) from None
        finally:
            await _end(process, output, group=not interactive)
        code = process.get_returncode()
        if code:
            ended = f"failed with exit code {code}" if code > 0 else f"was killed by signal {-code}"
            raise self._connection_failed(
                ended + _last_line(output.stderr), "run it by hand to see why"
            )
        return self._parsed(bytes(output.stdout))

    def _may_ask(self) -> bool:
        mode = self._plugin.interactive_mode
        available = self._interactive
        if available is None:
            available = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not available:
            raise self._config_error(
                "needs interactive input and standard input is not a terminal",
                "run it in a terminal",
            )
        return available and mode != "Never"

    def _environment(self, interactive: bool) -> dict[str, str]:
        spec: dict[str, object] = {"interactive": interactive}
        if self._plugin.provide_cluster_info and self._cluster is not None:
            spec["cluster"] = self._cluster
        version = self._plugin.api_version
        information = {"kind": "ExecCredential", "apiVersion": version, "spec": spec}
        return {
            **self._environ,
            **self._plugin.environment,
            "KUBERNETES_EXEC_INFO": json.dumps(information),
        }

    def _parsed(self, output: bytes) -> tuple[Credential, float]:
        advice = "run it by hand to see what it prints"
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._connection_failed(
                "printed something that is not an ExecCredential", advice
            ) from None
        if answer.kind != "ExecCredential" or answer.api_version != self._plugin.api_version:
            raise self._connection_failed(
                f"did not print an ExecCredential of {self._plugin.api_version}",
                "make its version and the kubeconfig's agree",
            )
        status = answer.status
        if status is None or not (status.token or status.client_certificate_data):
            raise self._connection_failed(
                "printed neither a token nor a client certificate", advice
            )
        chain, key = status.client_certificate_data, status.client_key_data
        if bool(chain) != bool(key):
            raise self._connection_failed(
                "printed a client certificate or its key, not both", advice
            )
        certificate = Certificate(chain.encode(), key.encode()) if chain and key else None
        expires = status.expiration_timestamp
        return (
            Credential(bearer(status.token) if status.token else None, certificate),
            expires.timestamp() if expires is not None else float("inf"),
        )

    def _config_error(self, what: str, advice: str) -> ConfigError:
        return ConfigError(self._sentence(what, advice))

    def _connection_failed(self, what: str, advice: str) -> ConnectionFailed:
        # It may succeed later: its own server may be unreachable now.
        return ConnectionFailed(self._sentence(what, advice))

    def _sentence(self, what: str, advice: str) -> str:
        plugin = f'the credential plugin {self._plugin.command} of user "{self._user}"'
        return f"{plugin} {what}; {advice}"


class Output(asyncio.SubprocessProtocol):
    """What a program prints, up to a limit, and that it has ended."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.exited = asyncio.Event()
        self.complete = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what is within the limit."""
        output = self.stdout if fd == 1 else self.stderr
        output += data[: OUTPUT_LIMIT - len(output)]

    def process_exited(self) -> None:
        """It has exited; its pipes may still be open."""
        self.exited.set()

    def connection_lost(self, _error: Exception | None) -> None:
        """It has exited and all it printed was read."""
        self.complete.set()


async def _end(process: asyncio.SubprocessTransport, output: Output, *, group: bool) -> None:
    """Kill a program that has not ended by itself; processes of a finished one are left alone."""
    if not output.complete.is_set():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(process.get_pid(), signal.SIGKILL)
            elif process.get_returncode() is None:
                process.kill()
    # The loop's own watcher must reap the process before close() looks whether it still runs.
    try:
        await output.exited.wait()
    finally:
        process.close()


def _last_line(complaint: bytearray) -> str:
    lines = complaint.decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    printable = "".join(c if c.isprintable() else " " for c in last)[:COMPLAINT_LIMIT]
    return f" ({printable})" if printable else ""
