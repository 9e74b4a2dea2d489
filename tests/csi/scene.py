"""A driver for tests: in this process, or as a program, always in a folder of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.csi.socket_client import SocketClient

from zonewise.csi.backends.folders import loops, mounts
from zonewise.csi.driver import Driver, open_data_folder, open_driver
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.csi.transport.calls import run_inline
from zonewise.csi.transport.client import CsiClient, InProcessClient
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

MIB = 1 << 20
DRIVER = "csi.example.com"
LABELS = "example.com/region;example.com/zone"
KEY = f"topology.{DRIVER}"
Mode = csi.VolumeCapability.AccessMode.Mode


def segments(zone: str, region: str = "r1") -> dict[str, str]:
    """The topology segments of a zone."""
    return {f"{KEY}/region": region, f"{KEY}/zone": zone}


def pool(name: str, zone: str, capacity: str = "1Gi", **more: Any) -> dict[str, Any]:
    """A pool of the configuration, in region r1."""
    segments = [
        {"domainLabel": "region", "value": "r1"},
        {"domainLabel": "zone", "value": zone},
    ]
    return {"poolName": name, "capacity": capacity, "domainSegments": segments, **more}


def config(*pools: dict[str, Any], **more: Any) -> str:
    """The text of a configuration file."""
    listed = pools or (pool("pool-a", "a"), pool("pool-b", "b"), pool("pool-c", "c"))
    return json.dumps({"version": 2, "pools": list(listed), **more})


def mount_capability(
    mode: csi.VolumeCapability.AccessMode.Mode = Mode.SINGLE_NODE_WRITER,
    fs_type: str = "",
    flags: Sequence[str] = (),
) -> csi.VolumeCapability:
    """A file system."""
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags),
        access_mode=csi.VolumeCapability.AccessMode(mode=mode),
    )


def block_capability(
    mode: csi.VolumeCapability.AccessMode.Mode = Mode.SINGLE_NODE_WRITER,
) -> csi.VolumeCapability:
    """A device."""
    return csi.VolumeCapability(
        block=csi.VolumeCapability.BlockVolume(),
        access_mode=csi.VolumeCapability.AccessMode(mode=mode),
    )


def homes(volume: csi.Volume) -> list[dict[str, str]]:
    """The segments from which a volume can be used, besides by nodes that stand in for them."""
    terms = [dict(term.segments) for term in volume.accessible_topology]
    if not terms:
        return []
    home, second = terms
    name = ".".join(home[key] for key in sorted(home))
    assert second == {f"{KEY}/takeover.{name}": "true"}
    return [home]


def requirement(
    requisite: Sequence[Mapping[str, str]] = (), preferred: Sequence[Mapping[str, str]] = ()
) -> csi.TopologyRequirement:
    """A topology requirement of these segments."""
    return csi.TopologyRequirement(
        requisite=[csi.Topology(segments=term) for term in requisite],
        preferred=[csi.Topology(segments=term) for term in preferred],
    )


def of_snapshot(id: str) -> csi.VolumeContentSource:
    """A snapshot as a source."""
    return csi.VolumeContentSource(snapshot=csi.VolumeContentSource.SnapshotSource(snapshot_id=id))


def of_volume(id: str) -> csi.VolumeContentSource:
    """A volume as a source."""
    return csi.VolumeContentSource(volume=csi.VolumeContentSource.VolumeSource(volume_id=id))


@dataclass
class Caller:
    """Calls a driver, with defaults for most fields."""

    client: CsiClient
    folder: Path

    async def create(
        self,
        name: str,
        *,
        size: int = 16 * MIB,
        limit: int = 0,
        capability: csi.VolumeCapability | None = None,
        topology: csi.TopologyRequirement | None = None,
        source: csi.VolumeContentSource | None = None,
        secrets: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> csi.Volume:
        """Create a volume."""
        request = csi.CreateVolumeRequest(
            name=name,
            capacity_range=csi.CapacityRange(required_bytes=size, limit_bytes=limit),
            volume_capabilities=[capability or mount_capability()],
            accessibility_requirements=topology,
            volume_content_source=source,
            secrets=secrets,
            parameters=parameters,
        )
        return (await self.client.call(methods.CREATE_VOLUME, request)).volume

    async def delete(self, id: str) -> None:
        """Delete a volume."""
        await self.client.call(methods.DELETE_VOLUME, csi.DeleteVolumeRequest(volume_id=id))

    async def snapshot(
        self, name: str, source: str, topology: csi.TopologyRequirement | None = None
    ) -> csi.Snapshot:
        """Create a snapshot."""
        request = csi.CreateSnapshotRequest(
            name=name, source_volume_id=source, accessibility_requirements=topology
        )
        return (await self.client.call(methods.CREATE_SNAPSHOT, request)).snapshot

    async def delete_snapshot(self, id: str) -> None:
        """Delete a snapshot."""
        await self.client.call(methods.DELETE_SNAPSHOT, csi.DeleteSnapshotRequest(snapshot_id=id))

    async def expand(self, id: str, size: int) -> csi.ControllerExpandVolumeResponse:
        """Make a volume larger."""
        return await self.client.call(
            methods.CONTROLLER_EXPAND_VOLUME,
            csi.ControllerExpandVolumeRequest(
                volume_id=id, capacity_range=csi.CapacityRange(required_bytes=size)
            ),
        )

    async def free(self, term: Mapping[str, str] | None = None) -> int:
        """The free bytes."""
        request = csi.GetCapacityRequest()
        if term is not None:
            request.accessible_topology.segments.update(term)
        return (await self.client.call(methods.GET_CAPACITY, request)).available_capacity

    async def volumes(self) -> list[str]:
        """The ids of all volumes."""
        answer = await self.client.call(methods.LIST_VOLUMES, csi.ListVolumesRequest())
        return [entry.volume.volume_id for entry in answer.entries]

    @property
    def staging(self) -> Path:
        """The default staging path."""
        return self.folder / "staging"

    @property
    def target(self) -> Path:
        """The default target path."""
        return self.folder / "target"

    async def stage(
        self,
        id: str,
        capability: csi.VolumeCapability | None = None,
        staging: Path | None = None,
    ) -> None:
        """Stage a volume."""
        await self.client.call(
            methods.NODE_STAGE_VOLUME,
            csi.NodeStageVolumeRequest(
                volume_id=id,
                staging_target_path=str(staging or self.staging),
                volume_capability=capability or mount_capability(),
            ),
        )

    async def unstage(self, id: str, staging: Path | None = None) -> None:
        """Unstage a volume."""
        await self.client.call(
            methods.NODE_UNSTAGE_VOLUME,
            csi.NodeUnstageVolumeRequest(
                volume_id=id, staging_target_path=str(staging or self.staging)
            ),
        )

    async def publish(
        self,
        id: str,
        capability: csi.VolumeCapability | None = None,
        *,
        target: Path | None = None,
        staging: Path | None = None,
        readonly: bool = False,
    ) -> Path:
        """Publish a volume; returns the target path."""
        await self.client.call(
            methods.NODE_PUBLISH_VOLUME,
            csi.NodePublishVolumeRequest(
                volume_id=id,
                staging_target_path=str(staging or self.staging),
                target_path=str(target or self.target),
                volume_capability=capability or mount_capability(),
                readonly=readonly,
            ),
        )
        return target or self.target

    async def unpublish(self, id: str, target: Path | None = None) -> None:
        """Unpublish a volume."""
        await self.client.call(
            methods.NODE_UNPUBLISH_VOLUME,
            csi.NodeUnpublishVolumeRequest(volume_id=id, target_path=str(target or self.target)),
        )

    async def stats(self, id: str, path: Path | None = None) -> list[csi.VolumeUsage]:
        """The usage of a volume."""
        answer = await self.client.call(
            methods.NODE_GET_VOLUME_STATS,
            csi.NodeGetVolumeStatsRequest(volume_id=id, volume_path=str(path or self.target)),
        )
        return list(answer.usage)

    async def node_expand(self, id: str, path: Path | None = None) -> int:
        """Expand a volume on the node; returns its size."""
        answer = await self.client.call(
            methods.NODE_EXPAND_VOLUME,
            csi.NodeExpandVolumeRequest(volume_id=id, volume_path=str(path or self.target)),
        )
        return answer.capacity_bytes


async def refused(call: Any) -> Code:
    """The code that a call is refused with."""
    try:
        answer = await call
    except CsiError as error:
        assert error.message, "a refusal without a message"
        return error.code
    raise AssertionError(f"not refused: {answer}")


@contextmanager
def driver(
    folder: Path, text: str = "", *, privileged: bool = True, zone: str = "a", labels: str = LABELS
) -> Iterator[Driver]:
    """A driver in this process that does its work inline."""
    parsed = parse_domain_labels(labels, DRIVER)
    configuration = parse_configuration(text or config(), parsed)
    data = open_data_folder(folder / "data", privileged=privileged)
    domain = FixedDomain({"region": "r1", "zone": zone} if labels else {})
    try:
        yield open_driver(
            DRIVER,
            data,
            parsed,
            lambda: configuration,
            node_id="node-1",
            domain=domain,
            worker=run_inline,
        )
    finally:
        data.close()


@contextmanager
def calling(folder: Path, text: str = "", **more: Any) -> Iterator[Caller]:
    """A caller of such a driver; fails if the test left a mount or a device behind."""
    with driver(folder, text, **more) as served:
        yield Caller(InProcessClient(served.calls), folder)
    assert left_behind(folder) == []


def left_behind(folder: Path) -> list[str]:
    """Mounts below a folder and devices on files in it."""
    below = str(folder.resolve()) + "/"
    left = [
        str(mount.target) for mount in mounts.read_table() if str(mount.target).startswith(below)
    ]
    for image in (folder / "data" / "pools").glob("*/*"):
        left += [str(device) for device in loops.find(image)]
    return left


def files(folder: Path) -> set[str]:
    """The paths in a data folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@dataclass
class Program:
    """``zonewise csi`` as a process."""

    folder: Path
    arguments: Sequence[str] = ()
    zone: str = "a"
    domain: Sequence[str] | None = None
    process: subprocess.Popen[bytes] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        return self.folder / "csi.sock"

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def command(self) -> list[str]:
        """Its command line."""
        domain = ["--orchestrator", "none", "--domain", f"region=r1;zone={self.zone}"]
        return [
            *(sys.executable, "-m", "zonewise", "csi", "--endpoint", f"unix://{self.socket}"),
            *("--drivername", DRIVER, "--node-id", "node-1", "--config", str(self.config)),
            *("--data", str(self.data), "--domain-labels", LABELS),
            *(domain if self.domain is None else self.domain),
            *self.arguments,
        ]

    def start(self) -> None:
        """Start it; it is ready when ``ready`` has returned."""
        if not self.config.exists():
            self.config.write_text(config())
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env={**os.environ, **self.environment}
            )

    async def ready(self) -> None:
        """Wait until it answers."""
        client = SocketClient(self.socket)
        try:
            while True:
                assert self.process is not None
                assert self.process.poll() is None, self.log
                try:
                    await client.call(methods.PROBE, csi.ProbeRequest(), timeout=5)
                except CsiError:
                    await asyncio.sleep(0.02)
                else:
                    return
        finally:
            await client.close()

    def kill(self) -> None:
        """End it as a power failure would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """Stop it with SIGTERM; returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait()
        self.process = None
        return code

    def check(self) -> tuple[int, dict[str, Any]]:
        """Exit code and report of ``zonewise csi check``."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "zonewise", "csi", "check", "--backend", "embedded"),
                *("--config", str(self.config), "--data", str(self.data), "-o", "json"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)


@asynccontextmanager
async def running(program: Program) -> AsyncIterator[Caller]:
    """A running program and a caller; it is stopped at the end."""
    program.start()
    client = SocketClient(program.socket)
    try:
        await program.ready()
        yield Caller(client, program.folder)
    finally:
        await client.close()
        if program.process is not None:
            program.stop()
