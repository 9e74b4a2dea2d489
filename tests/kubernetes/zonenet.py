"""One zone's network: a namespace in which every pod answers with its address.

Runs as ``unshare --net python -m tests.kubernetes.zonenet SOCKET``. All addresses of pods and
Services are local here, so packets need no route: a proxy in this namespace rewrites a Service's
address to a pod's, and one server behind all pods answers with the address it was reached at. The
API server, on the loopback of the machine, is reached through a socket in the file system, because
that does not belong to a namespace.

Each line on stdin, ``ADDRESS PORT COUNT``, asks for so many connections; the answer is a line of
JSON: how often each pod answered.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress

API = 6443
PODS, SERVICES = "10.0.0.0/10", "10.96.0.0/12"
HERE, HERE_TOO = "10.200.0.1", "fd00:200::1"
PATIENCE = 5.0
AT_ONCE = 32


def prepare() -> None:
    """Make the networks of pods and Services local."""
    for words in (
        "link set lo up",
        f"addr add {HERE}/32 dev lo",
        f"addr add {HERE_TOO}/128 dev lo",
        f"route add local {PODS} dev lo src {HERE}",
        f"route add local {SERVICES} dev lo src {HERE}",
    ):
        subprocess.run(["ip", *words.split()], check=True)


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes from one end to the other."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def relay(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Join two connections until both ends are silent."""
    await asyncio.gather(pipe(near[0], far[1]), pipe(far[0], near[1]))


async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A pod: answers with the address it was reached at."""
    writer.write(writer.get_extra_info("sockname")[0].encode())
    writer.close()


async def ask(address: str, port: int, turn: asyncio.Semaphore) -> str:
    """The pod that answers at an address, or the name of the error."""
    try:
        async with turn, asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(address, port)
            reply = (await reader.read()).decode()
            writer.close()
            return reply
    except (OSError, TimeoutError) as error:
        return type(error).__name__


def say(line: str) -> None:
    """Write a line to the parent process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(socket: str) -> None:
    """Serve and ask until stdin ends."""
    prepare()

    async def to_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay((reader, writer), await asyncio.open_unix_connection(socket))

    await asyncio.start_server(to_server, "127.0.0.1", API)
    await asyncio.start_server(answer, "0.0.0.0", 80)
    say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        address, port, count = line.split()
        turn = asyncio.Semaphore(AT_ONCE)
        questions = (ask(address, int(port), turn) for _ in range(int(count)))
        say(json.dumps(Counter(await asyncio.gather(*questions))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
