"""CoreDNS as a process: on a free loopback port, over a kubeconfig, stopped at the end."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tools.coredns.binary import coredns
from tools.realkube.errors import RealKubeError, tail

PLUGIN = """\
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods verified
        zonal
        ttl 5
        fallthrough in-addr.arpa ip6.arpa
    }}"""
PATIENCE = 60.0


@asynccontextmanager
async def running(
    kubeconfig: Path, *, domain: str = "cluster.local", more: str = "", processors: int = 0
) -> AsyncIterator[tuple[int, int]]:
    """The port it answers on, and its process id; ``more`` are further lines of its Corefile."""
    port, ready = _free_port(), _free_port()
    with tempfile.TemporaryDirectory(prefix="zonewise-coredns-") as folder:
        corefile = Path(folder) / "Corefile"
        plugin = PLUGIN.format(domain=domain, kubeconfig=kubeconfig)
        corefile.write_text(
            f".:{port} {{\n    bind 127.0.0.1\n    ready 127.0.0.1:{ready}\n{plugin}\n{more}\n}}\n"
        )
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                coredns(),
                "-conf",
                str(corefile),
                stdout=output,
                stderr=output,
                env={"GOMAXPROCS": str(processors)} if processors else None,
            )
        try:
            async with asyncio.timeout(PATIENCE):
                while not (await _is_ready(ready) and await _listens(port)):
                    if process.returncode is not None:
                        raise RealKubeError(f"CoreDNS ended by itself:\n{tail(log)}")
                    await asyncio.sleep(0.2)
            yield port, process.pid
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def _is_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


async def _listens(port: int) -> bool:
    """Whether it listens: it reports readiness a moment earlier."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
