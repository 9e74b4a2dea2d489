"""What the two shortcuts past asyncio and aiohttp are worth: each is taken away, in one run.

*Frames*: the chunk of an event is made once and written to the transport of every watcher, past
aiohttp's writer and past the task of the watch. *Buffer*: TLS receives into 8 KiB instead of
asyncio's 256 KiB. ``python -m benchmarks.embedded.shortcuts serve VARIANT …`` is a server without
one of them; ``python -m benchmarks embedded.shortcuts`` compares all three at fan-out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from aiohttp import web

from benchmarks.embedded.contest import ROUNDS, Measured, fill, note, run
from benchmarks.embedded.load import Job
from benchmarks.embedded.servers import Contestant, ours, prepare
from benchmarks.table import Row, Table
from zonewise.cli.main import main
from zonewise.embedded.apiserver.http import server as http
from zonewise.embedded.apiserver.request.call import Answer
from zonewise.runtime.serving.connection import HttpRequest
from zonewise.runtime.serving.listener import Encryption

VARIANTS = ("both", "no-frames", "no-buffer")
WATCHERS = int(os.environ.get("ZONEWISE_BENCH_WATCHERS", "1000"))
CHANGES = 30


async def _stream(
    _self: http.HttpServer,
    request: HttpRequest,
    answer: Answer,
    parts: AsyncGenerator[bytes, None],
) -> web.StreamResponse:
    """A watch as aiohttp alone writes it."""
    response = web.StreamResponse(status=answer.status, headers=http._build_headers(answer))
    response.enable_chunked_encoding()
    try:
        await response.prepare(request)
        if answer.on_end and request.transport is not None:
            answer.on_end(request.transport.abort)
        async for part in parts:
            await response.write(part)
        await response.write_eof()
    except ConnectionError:
        pass
    finally:
        await parts.aclose()
    return response


def serve(variant: str, arguments: list[str]) -> int:
    """``zonewise up`` without one of the shortcuts."""
    if variant == "no-frames":
        setattr(http.HttpServer, "_stream", _stream)  # noqa: B010 - the point of this program
    elif variant == "no-buffer":
        Encryption.max_size = 256 * 1024
    return main(["up", *arguments])


def _peak(contestant: Contestant) -> float:
    """MB the process has occupied at most."""
    (pid,) = contestant.server.processes
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def shortcuts() -> Iterator[Table]:
    """Fan-out of changes to many watchers, all variants in turns."""
    with tempfile.TemporaryDirectory(prefix="zonewise-bench-") as name, ExitStack() as stack:
        there = []
        for variant in VARIANTS:
            module = (__name__, "serve", variant)
            server = ours(Path(name) / variant, module=module)
            pid, kubeconfig = stack.enter_context(server)
            there.append(Contestant(variant, prepare(kubeconfig, (pid,))))
        job = Job("watch", WATCHERS, CHANGES, 1, "watch")
        rounds: dict[str, list[Measured]] = {variant: [] for variant in VARIANTS}
        for contestant in there:
            fill(contestant, "watch", 1)
        for turn in range(ROUNDS):
            for contestant in there if turn % 2 == 0 else reversed(there):
                rounds[contestant.name].append(run(contestant, job))
        values = {
            ("events", "events/s"): lambda variant: median(
                each.rate for each in rounds[variant.name]
            ),
            ("p99", "ms"): lambda variant: median(each.p99 for each in rounds[variant.name]),
            ("processor time of an event", "µs"): lambda variant: median(
                each.cpu for each in rounds[variant.name]
            ),
            ("peak memory", "MB"): _peak,
        }
        for (title, unit), of in values.items():
            yield Table(
                title=f"fan-out to {WATCHERS} watchers: {title}",
                unit=unit,
                higher_is_better=title == "events",
                rows=tuple(
                    Row(name=variant.name, value=of(variant), ours=variant.name == VARIANTS[0])
                    for variant in there
                ),
                note=note(),
            )


if __name__ == "__main__":
    sys.exit(serve(sys.argv[2], sys.argv[3:]))
