"""The driver's unix socket, by gRPC.

The file of a server that was killed is replaced; one that still answers is not: two programs behind
one path would each see half of the calls. The socket is for its owner alone. Stopping lets running
calls finish.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import grpc.aio
from google.protobuf.message import Message

from zonewise.api.errors import ConfigError
from zonewise.csi.errors import CsiError
from zonewise.csi.transport.calls import Calls
from zonewise.csi.transport.methods import ServedMethod

GRACE_SECONDS = 10.0
PATH_LIMIT = 107
"""Bytes of a path that fit into a socket address."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def parse_endpoint(endpoint: str) -> Path:
    """The path in ``unix:///run/csi.sock``, or a sentence that says how to write it."""
    parts = urlsplit(endpoint)
    path = parts.path
    if parts.scheme != "unix" or parts.netloc or not path.startswith("/"):
        raise ConfigError(
            f"--endpoint {endpoint[:200]!r} is not a unix socket; write it like unix:///csi/csi.sock"
        )
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise ConfigError(
            f"--endpoint {path} is longer than the {PATH_LIMIT} bytes of a socket path"
        )
    if not Path(path).parent.is_dir():
        raise ConfigError(
            f"--endpoint {path}: there is no folder {Path(path).parent}; make it first"
        )
    return Path(path)


class SocketServer:
    """Serves calls at a path."""

    def __init__(self, calls: Calls, path: Path) -> None:
        self._calls = calls
        self.path = path
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Listen, or say why that cannot be."""
        _remove_stale_socket(self.path)
        server = grpc.aio.server()
        services: dict[str, dict[str, grpc.RpcMethodHandler[Message, Message]]] = {}
        for binding in self._calls.bindings.values():
            services.setdefault(binding.method.service, {})[binding.method.name] = (
                grpc.unary_unary_rpc_method_handler(
                    self._make_handler(binding),
                    request_deserializer=binding.method.request_type.FromString,
                    response_serializer=_serialize,
                )
            )
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(f"csi.v1.{name}", methods)
                for name, methods in services.items()
            )
        )
        previous_umask = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise ConfigError(f"--endpoint {self.path}: cannot listen there: {error}") from error
        finally:
            os.umask(previous_umask)
        await server.start()
        self._server = server

    async def run(self) -> None:
        """Serve what was started until it is stopped; calls that have begun end first."""
        try:
            await self._stopping.wait()
        finally:
            await self.close()

    def stop(self) -> None:
        """Take no more calls."""
        self._stopping.set()

    async def close(self) -> None:
        """No new calls, an end for those that have begun, and no file left behind."""
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)
            self._server = None
        await self._calls.finish()
        self.path.unlink(missing_ok=True)

    def _make_handler(
        self, binding: ServedMethod
    ) -> Callable[[Message, grpc.aio.ServicerContext[Message, Message]], Awaitable[Message]]:
        async def serve(
            request: Message, context: grpc.aio.ServicerContext[Message, Message]
        ) -> Message:
            try:
                return await self._calls.call(
                    binding.method, request, timeout=context.time_remaining()
                )
            except CsiError as error:
                await context.abort(_CODES[error.code], error.message)

        return serve


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _remove_stale_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--endpoint {path} is a file, not a socket; remove it or take another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"--endpoint {path} is in use: another program answers there")
