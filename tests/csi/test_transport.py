"""Calls over a socket and in one process: the same answers, codes, deadlines and log lines."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from tests.csi.scene import (
    Caller,
    calling,
    driver,
    homes,
    mount_capability,
    refused,
    requirement,
    segments,
)
from tests.csi.socket_client import SocketClient

from zonewise.api.errors import ConfigError
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.locks import Locks
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.csi.transport.calls import Calls, redact, run_inline
from zonewise.csi.transport.client import CsiClient, InProcessClient
from zonewise.csi.transport.methods import Method, bind
from zonewise.csi.transport.server import SocketServer, parse_endpoint
from zonewise.runtime.process import logs

SECRET = "correct-horse"
T = TypeVar("T")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure(verbosity=2, format="json", stream=stream)
    yield stream
    logs.configure()


@pytest.fixture(params=["socket", "process"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CsiClient]:
    with driver(tmp_path, privileged=False) as served:
        if request.param == "process":
            yield InProcessClient(served.calls)
            return
        server = SocketServer(served.calls, tmp_path / "csi.sock")
        await server.start()
        client = SocketClient(server.path)
        try:
            yield client
        finally:
            await client.close()
            await server.close()
        assert not server.path.exists()


async def test_both_transports_answer_alike(client: CsiClient, tmp_path: Path) -> None:
    """Over either transport a volume is created, found again, refused and deleted."""
    caller = Caller(client, tmp_path)
    volume = await caller.create("v")
    assert await caller.create("v") == volume
    assert await refused(caller.create("")) is Code.INVALID_ARGUMENT
    assert await refused(caller.create("v", size=1 << 29)) is Code.ALREADY_EXISTS
    await caller.delete(volume.volume_id)
    info = await client.call(methods.GET_PLUGIN_INFO, csi.GetPluginInfoRequest())
    assert info.name == "csi.example.com"
    probe = await client.call(methods.PROBE, csi.ProbeRequest())
    assert probe.ready.value


A, B, C = segments("a"), segments("b"), segments("c")
ZONE_B, ZONE_C = ({key: value for key, value in term.items() if "zone" in key} for term in (B, C))
ZONES = json.dumps(
    [
        {"poolName": f"pool-{zone}", "domainSegments": [{"domainLabel": "zone", "value": zone}]}
        for zone in "abc"
    ]
)


@pytest.mark.parametrize(
    ("requisite", "preferred", "parameters", "pool", "accessible"),
    [
        ([A, B, C], [B, C, A], {}, "pool-b", [B]),
        ([B], [B], {}, "pool-b", [B]),
        ([A, B, C], [B, C, A], {"placement": "balanced"}, "", []),
        ([], [], {}, "", []),
        (
            [ZONE_B, ZONE_C],
            [ZONE_C, ZONE_B],
            {"topologyConstrainedPools": ZONES},
            "pool-c",
            [ZONE_C],
        ),
    ],
    ids=["delayed", "strict", "immediate", "no-topology", "allowed-topologies"],
)
async def test_requests_of_a_provisioner_in_its_five_modes(
    client: CsiClient,
    tmp_path: Path,
    requisite: list[dict[str, str]],
    preferred: list[dict[str, str]],
    parameters: dict[str, str],
    pool: str,
    accessible: list[dict[str, str]],
) -> None:
    """Requests recorded from the official provisioner are answered over both transports."""
    caller = Caller(client, tmp_path)
    topology = requirement(requisite, preferred) if requisite else None
    volume = await caller.create("pvc-1", topology=topology, parameters=parameters)
    assert homes(volume) == accessible
    assert not pool or volume.volume_context["pool"] == pool


async def test_what_is_not_served_is_unimplemented(client: CsiClient) -> None:
    """A call of the protocol that we do not offer is UNIMPLEMENTED."""
    modify = Method(
        "Controller", csi.ControllerModifyVolumeRequest, csi.ControllerModifyVolumeResponse
    )
    code = await refused(client.call(modify, csi.ControllerModifyVolumeRequest(volume_id="x")))
    assert code is Code.UNIMPLEMENTED


async def test_no_secret_is_in_any_line(
    client: CsiClient, tmp_path: Path, log: io.StringIO
) -> None:
    """Fields that the protocol marks are hidden at every level, in refusals too."""
    caller = Caller(client, tmp_path)
    await caller.create("v", secrets={"key": SECRET})
    await refused(caller.create("", secrets={"key": SECRET}))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    requests = [line["request"] for line in lines if line["event"] == "asked"]
    assert requests[0]["secrets"] == "(hidden)"
    assert SECRET not in log.getvalue()


async def test_every_line_of_a_call_has_its_number(
    client: CsiClient, tmp_path: Path, log: io.StringIO
) -> None:
    """All log lines of a call share a number that no other call has."""
    caller = Caller(client, tmp_path)
    await caller.create("one")
    await caller.create("two")
    by_call: dict[str, set[str]] = {}
    for line in map(json.loads, log.getvalue().splitlines()):
        if line["logger"] == "csi" and "call" in line:
            by_call.setdefault(line["call"], set()).add(line["event"])
    assert len(by_call) == 2
    assert all({"asked", "placed", "answered"} <= events for events in by_call.values())


def test_all_secret_fields_of_the_protocol_are_hidden() -> None:
    """Every message that has a field marked as secret is redacted by its descriptor."""
    count = 0
    for message in csi.DESCRIPTOR.message_types_by_name.values():
        if "secrets" in message.fields_by_name:
            count += 1
            filled = getattr(csi, message.name)(secrets={"key": SECRET})
            assert redact(filled) == {"secrets": "(hidden)"}
    assert count > 15


async def threaded(work: Callable[[], T], _lane: str = "") -> T:
    """Run it in a thread, as behind a socket."""
    return await asyncio.to_thread(work)


class Slow:
    """A call that ends when the test lets it."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.done = 0

    def serve(self, _request: csi.ProbeRequest) -> csi.ProbeResponse:
        self.begun.set()
        assert self.go.wait(60)
        self.done += 1
        return csi.ProbeResponse()

    def calls(self) -> Calls:
        return Calls([bind(methods.PROBE, self.serve)], worker=threaded)


@pytest.mark.parametrize("kind", ["socket", "process"])
async def test_a_deadline_ends_the_waiting_and_not_the_work(tmp_path: Path, kind: str) -> None:
    """The caller gets DEADLINE_EXCEEDED; a call that has begun is finished."""
    slow = Slow()
    calls = slow.calls()
    server = SocketServer(calls, tmp_path / "csi.sock")
    await server.start()
    socket_client = SocketClient(server.path)
    client: CsiClient = socket_client if kind == "socket" else InProcessClient(calls)
    try:
        call = client.call(methods.PROBE, csi.ProbeRequest(), timeout=0.2)
        assert await refused(call) is Code.DEADLINE_EXCEEDED
        assert await asyncio.to_thread(slow.begun.wait, 60)
        assert slow.done == 0
        slow.go.set()
        await calls.finish()
        assert slow.done == 1
    finally:
        slow.go.set()
        await socket_client.close()
        await server.close()


async def test_a_refusal_after_the_deadline_is_no_fault() -> None:
    """A call that is refused when its caller has stopped waiting ends without a traceback."""
    go, faults = threading.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: faults.append(about))

    def serve(_request: csi.ProbeRequest) -> csi.ProbeResponse:
        assert go.wait(60)
        raise CsiError(Code.ABORTED, "still held")

    calls = Calls([bind(methods.PROBE, serve)], worker=threaded)
    call = InProcessClient(calls).call(methods.PROBE, csi.ProbeRequest(), timeout=0.05)
    assert await refused(call) is Code.DEADLINE_EXCEEDED
    go.set()
    await calls.finish()
    gc.collect()
    assert faults == []


async def test_what_waits_beyond_its_deadline_never_starts() -> None:
    """A call that no worker took in time is never run."""
    done = []

    def serve(_request: csi.ProbeRequest) -> csi.ProbeResponse:
        done.append(1)
        return csi.ProbeResponse()

    calls = Calls([bind(methods.PROBE, serve)], worker=run_inline)
    with pytest.raises(CsiError) as refusal:
        await calls.call(methods.PROBE, csi.ProbeRequest(), timeout=-1.0)
    assert (refusal.value.code, done) == (Code.DEADLINE_EXCEEDED, [])


async def test_an_unexpected_exception_is_internal(log: io.StringIO) -> None:
    """An unexpected exception is INTERNAL, with the traceback only in the log."""

    def serve(_request: csi.ProbeRequest) -> csi.ProbeResponse:
        raise RuntimeError("a confidential detail")

    client = InProcessClient(Calls([bind(methods.PROBE, serve)], worker=run_inline))
    with pytest.raises(CsiError) as refusal:
        await client.call(methods.PROBE, csi.ProbeRequest())
    assert refusal.value.code is Code.INTERNAL
    assert "confidential detail" not in refusal.value.message
    assert "confidential detail" in log.getvalue()


async def test_messages_are_not_shared_between_the_two_sides(tmp_path: Path) -> None:
    """Changing an answer does not change later answers."""
    with calling(tmp_path, privileged=False) as caller:
        request = csi.CreateVolumeRequest(name="v", volume_capabilities=[mount_capability()])
        first = await caller.client.call(methods.CREATE_VOLUME, request)
        first.volume.volume_context["pool"] = "changed"
        again = await caller.client.call(methods.CREATE_VOLUME, request)
        assert again.volume.volume_context["pool"] != "changed"


async def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    """The socket of a dead server is replaced; a used socket or another file is not."""
    path = tmp_path / "csi.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with driver(tmp_path, privileged=False) as served:
        server = SocketServer(served.calls, path)
        await server.start()
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConfigError, match="in use"):
            await SocketServer(served.calls, path).start()
        await server.close()
        path.write_text("a file")
        with pytest.raises(ConfigError, match="not a socket"):
            await SocketServer(served.calls, path).start()


@pytest.mark.parametrize(
    "endpoint", ["", "tcp://x:1", "unix://relative", "/csi.sock", "unix:///" + "x" * 200]
)
def test_an_endpoint_is_a_unix_socket(endpoint: str) -> None:
    """Anything else is refused with one sentence."""
    with pytest.raises(ConfigError, match="--endpoint"):
        parse_endpoint(endpoint)


def test_locks_exclude_threads_and_are_shared_by_readers(tmp_path: Path) -> None:
    """A second writer is ABORTED, readers are not; each Locks acts as another process."""
    first, second = Locks(tmp_path / "lock"), Locks(tmp_path / "lock")
    with first.hold("v"):
        with pytest.raises(CsiError) as refusal, second.hold("v"):
            pass
        assert refusal.value.code is Code.ABORTED
        with first.hold("other"):
            pass
    with (
        first.hold("v", shared=True),
        second.hold("v", shared=True),
        pytest.raises(CsiError),
        first.hold("v"),
    ):
        pass
    with second.hold("v"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.looptime
async def test_a_driver_runs_in_virtual_time(tmp_path: Path) -> None:
    """In one process nothing waits for a real clock or a thread: hours of calls take no time."""
    loop = asyncio.get_running_loop()
    with calling(tmp_path, privileged=False) as caller:
        for hour in range(5):
            volume = await caller.create(f"v{hour}")
            await asyncio.sleep(3600)
            await caller.delete(volume.volume_id)
    assert loop.time() == 5 * 3600


@pytest.mark.system
def test_a_cluster_in_one_process_loads_no_grpc() -> None:
    """A cluster in one process calls its driver without a socket, and does not load the library for
    sockets, which takes 8 MB.
    """
    code = "import sys, zonewise.embedded.csi_driver; sys.exit('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0
