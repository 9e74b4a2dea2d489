"""One client against the name server, beside a quiet one that asks for a Service every few ms.

The server is a process of its own without an API server: its cluster is put in as objects, and its
upstream is a process of ours that answers, stays silent or sends long answers as a name says. The
hostile client, a process too, is ``127.0.0.2``, the quiet one ``127.0.0.3``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from random import Random

from tests.dns.clusters import Names, endpoint, headless, namespace, pieces, port, service

from benchmarks.sheet import Line, Sheet
from zonewise.dns.names import parse_domain
from zonewise.dns.outside.forward import Forwarder
from zonewise.dns.outside.upstream import Upstream
from zonewise.dns.server import bind
from zonewise.dns.tcp import StreamServer
from zonewise.dns.udp import PacketServer

SECONDS = 3.0
PAUSE = 0.01
PATIENCE = 5.0
HOSTILE, QUIET = "127.0.0.2", "127.0.0.3"
QUESTION_END = b"\x00\x01\x00\x01"
ADDRESS = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0a\x00\x00\x01"
SIZES = {"thousand": 1000, "many": 20_000}

Asking = Callable[[int, int], int]
"""Asks a port for the nth time, and gives the lower flags of the answer."""

Sending = Callable[[int], None]
SPAWN = multiprocessing.get_context("spawn")


def attack() -> Iterator[Sheet]:
    """How long a quiet client waits: alone, and during each attack."""
    lines = []
    for attacker, (name, ask, _) in enumerate(ATTACKS):
        with _server() as number:
            _waits(number, ask, 0.5)
            alone = _slow(_waits(number, ask, SECONDS))
            begun = SPAWN.Event()
            process = SPAWN.Process(target=_attack, args=(attacker, number, begun), daemon=True)
            process.start()
            try:
                begun.wait()
                time.sleep(1.5)
                under = _slow(_waits(number, ask, SECONDS))
            finally:
                process.terminate()
                process.join()
        lines.append(Line(name=name, unit="ms", ours=under, real=alone))
    yield Sheet(
        title="DNS: what a quiet client waits under an attack",
        lines=tuple(lines),
        peer="alone",
        goal=0.1,
        note=f"99th percentile; a failure, and no answer, count as {PATIENCE:g} s",
    )


def _attack(attacker: int, number: int, begun: Event) -> None:
    begun.set()
    ATTACKS[attacker][2](number)


def _slow(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)] * 1000


def _waits(number: int, ask: Asking, seconds: float) -> list[float]:
    """How long a client that asks again and again waits for each answer."""
    waits: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        try:
            good = ask(number, len(waits)) & 0xF == 0
        except OSError:
            good = False
        waits.append(time.perf_counter() - begin if good else PATIENCE)
        time.sleep(PAUSE)
    return waits


def _by_packet(name: Callable[[int], str]) -> Asking:
    def ask(number: int, at: int) -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((QUIET, 0))
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", number))
            sock.send(_question(name(at)))
            return sock.recv(4096)[3]

    return ask


def _by_stream(number: int, _: int) -> int:
    with socket.create_connection(("127.0.0.1", number), PATIENCE, (QUIET, 0)) as sock:
        question = _question(_web(0))
        sock.sendall(len(question).to_bytes(2, "big") + question)
        answer = sock.recv(4096)
        return answer[5] if answer else 2


def _question(name: str, kind: int = 1, *, identity: int = 7, size: int = 4096) -> bytes:
    head = (identity & 0xFFFF).to_bytes(2, "big") + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01"
    opt = b"\x00\x00\x29" + size.to_bytes(2, "big") + bytes(6)
    return head + parse_domain(name) + kind.to_bytes(2, "big") + b"\x00\x01" + opt


def _packets(name: Callable[[int], str], kind: int, rate: int) -> Sending:
    """Questions in packets, so many a second."""

    def send(number: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((HOSTILE, 0))
            sock.connect(("127.0.0.1", number))
            at = 0
            begin = time.perf_counter()
            while True:
                while at < (time.perf_counter() - begin) * rate:
                    at += 1
                    with suppress(OSError):
                        sock.send(_question(name(at), kind, identity=at))
                time.sleep(0.01)

    return send


def _connections(number: int) -> None:
    """Open more connections than the server takes; each asks now and then, and is reopened."""
    question = _question(_web(0))
    framed = len(question).to_bytes(2, "big") + question
    streams: list[socket.socket] = []
    while True:
        for sock in streams[:]:
            try:
                sock.recv(4096)
                sock.send(framed)
            except BlockingIOError:
                continue
            except OSError:
                sock.close()
                streams.remove(sock)
        while len(streams) < 1100:
            sock = socket.socket()
            sock.bind((HOSTILE, 0))
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", number))
            streams.append(sock)
        time.sleep(2)


def _spelled(name: str) -> Callable[[int], str]:
    rng = Random(22)
    return lambda _: "".join(rng.choice((letter, letter.upper())) for letter in name)


def _web(_: int) -> str:
    return "web.shop.svc.cluster.local"


def _outside(_: int) -> str:
    return f"q{time.perf_counter_ns()}.good.example"  # never from the cache


ATTACKS: tuple[tuple[str, Asking, Sending], ...] = (
    (
        "SRV of 1,000 endpoints in any spelling, 50/s",
        _by_packet(_web),
        _packets(_spelled("thousand.shop.svc.cluster.local"), 33, 50),
    ),
    (
        "SRV of 20,000 endpoints in any spelling, 50/s",
        _by_packet(_web),
        _packets(_spelled("many.shop.svc.cluster.local"), 33, 50),
    ),
    (
        "answers of 4,000 records from upstream, 10/s",
        _by_packet(_web),
        _packets(lambda at: f"n{at}.long.example", 1, 10),
    ),
    (
        "hostile answers from upstream, 2/s",
        _by_packet(_web),
        _packets(lambda at: f"n{at}.chain.example", 1, 2),
    ),
    (
        "names of a silent domain, 600/s",
        _by_packet(_outside),
        _packets(lambda at: f"n{at}.silent.example", 1, 600),
    ),
    ("all connections held", _by_stream, _connections),
)


@contextmanager
def _server() -> Iterator[int]:
    """A name server in a process, and its port."""
    ours, theirs = SPAWN.Pipe()
    upstream = SPAWN.Process(target=_run_upstream, args=(theirs,), daemon=True)
    upstream.start()
    number = ours.recv()
    process = SPAWN.Process(target=_run, args=(theirs, number), daemon=True)
    process.start()
    try:
        yield int(ours.recv())
    finally:
        for child in (process, upstream):
            child.terminate()
            child.join()


def _run(connection: Connection, upstream: int) -> None:
    asyncio.run(_serve(connection, upstream))


async def _serve(connection: Connection, upstream: int) -> None:
    names = Names(forwards=Forwarder(lambda: [Upstream("127.0.0.1", upstream)]))
    names.put(namespace("shop"), service("web", clusterIP="10.96.0.7", ports=[port("http", 80)]))
    for name, count in SIZES.items():
        names.put(headless(name))
        for part in range(count // 100):
            rows = [endpoint(f"10.{part // 250 + 1}.{part % 250}.{at}") for at in range(1, 101)]
            piece = pieces(name, rows)
            piece["metadata"]["name"] = f"{name}-{part:04}"
            names.put(piece)
    packets, listening = bind("127.0.0.1", 0)
    PacketServer(packets, names.responder).start()
    await StreamServer(listening, names.responder).start()
    connection.send(packets.getsockname()[1])
    await asyncio.Event().wait()


def _run_upstream(connection: Connection) -> None:
    """Another server: over packets it is silent, truncates or answers, streams have the rest."""
    packets, listening = bind("127.0.0.1", 0)
    packets.setblocking(True)
    listening.setblocking(True)
    threading.Thread(target=_answer_streams, args=(listening,), daemon=True).start()
    connection.send(packets.getsockname()[1])
    while True:
        data, source = packets.recvfrom(4096)
        name = data[12 : data.index(QUESTION_END, 12)]
        if b"silent" in name:
            continue
        cut = b"long" in name or b"chain" in name
        address = (
            b"" if cut else b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0a\x00\x00\x01"
        )
        packets.sendto(_build_answer(data, not cut, address, cut=cut), source)


def _build_answer(data: bytes, answers: int, records: bytes, *, cut: bool = False) -> bytes:
    flags = b"\x83\x80" if cut else b"\x81\x80"
    head = data[:2] + flags + b"\x00\x01" + answers.to_bytes(2, "big") + bytes(4)
    return head + data[12 : data.index(QUESTION_END, 12) + 4] + records


def _answer_streams(listening: socket.socket) -> None:
    while True:
        sock, _ = listening.accept()
        with sock, suppress(OSError, ValueError):
            data = sock.recv(4096)[2:]
            answer = _chain(data) if b"chain" in data else _long(data)
            sock.sendall(len(answer).to_bytes(2, "big") + answer)


def _long(data: bytes) -> bytes:
    record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0a"
    return _build_answer(data, 4000, b"".join(record + at.to_bytes(3, "big") for at in range(4000)))


def _chain(data: bytes) -> bytes:
    """The longest chain of pointers that a name may have, for as many names as fit."""
    begin = 12 + len(data[12 : data.index(QUESTION_END, 12) + 4])
    body = begin + 11
    first = b"\x00\x00\x10\x00\x01\x00\x00\x00\x3c" + (2 * 125).to_bytes(2, "big")
    places = [12, *(body + 2 * at for at in range(125))]
    steps = [(0xC000 | at).to_bytes(2, "big") for at in places]
    record = steps[-1] + b"\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x00"
    return _build_answer(data, 5001, first + b"".join(steps[:-1]) + record * 5000)
