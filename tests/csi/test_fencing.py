"""A volume is taken only from a node in a domain that was taken over (root)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.csi.scene import (
    DRIVER,
    LABELS,
    MIB,
    Caller,
    block_capability,
    config,
    left_behind,
    mount_capability,
    requirement,
    segments,
)

from zonewise.csi.backends.folders import loops, mounts
from zonewise.csi.driver import DataFolder, open_data_folder, open_driver
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services.steps import mount_lock
from zonewise.csi.transport.calls import run_inline
from zonewise.csi.transport.client import InProcessClient
from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.identifiers import StoredKind

pytestmark = [pytest.mark.asyncio, pytest.mark.system]

DOMAINS = parse_domain_labels(LABELS, DRIVER)


class Machine:
    """Nodes of three zones on one machine, with one data folder and one configuration."""

    def __init__(self, folder: Path, data: DataFolder) -> None:
        self.folder = folder
        self.data = data
        self.configuration = StorageConfiguration()
        self.take({})

    def take(self, takeover: dict[str, list[str]]) -> None:
        """Write another takeover map."""
        text = config(**{"topology-takeover": takeover})
        self.configuration = parse_configuration(text, DOMAINS)

    def node(self, name: str) -> Caller:
        """The driver on a node, whose name begins with its zone."""
        driver = open_driver(
            DRIVER,
            self.data,
            DOMAINS,
            lambda: self.configuration,
            node_id=name,
            domain=FixedDomain({"region": "r1", "zone": name[0]}),
            worker=run_inline,
        )
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return Caller(InProcessClient(driver.calls), folder)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine that has nothing mounted afterwards."""
    data = open_data_folder(tmp_path / "data")
    yield Machine(tmp_path, data)
    data.close()
    assert left_behind(tmp_path) == []


async def volume(caller: Caller, capability: csi.VolumeCapability) -> str:
    """Create a volume that belongs to zone a."""
    created = await caller.create(
        "v", size=16 * MIB, capability=capability, topology=requirement([segments("a")])
    )
    return created.volume_id


async def used(caller: Caller, id: str, capability: csi.VolumeCapability) -> Path:
    """Stage and publish; the pod's path."""
    await caller.stage(id, capability)
    await caller.publish(id, capability)
    return caller.target


async def released(caller: Caller, id: str) -> None:
    """Unpublish and unstage."""
    await caller.unpublish(id)
    await caller.unstage(id)


@contextmanager
def raises(code: Code, words: str) -> Iterator[None]:
    """Expect an error with this code and message."""
    with pytest.raises(CsiError, match=words) as raised:
        yield
    assert raised.value.code is code


@contextmanager
def opened(path: Path, *, device: bool = False) -> Iterator[int]:
    """A file that a program of the dead node keeps open."""
    flags = os.O_RDWR | (0 if device else os.O_CREAT)
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
async def test_later_writes_of_a_fenced_node_are_refused(machine: Machine, kind: str) -> None:
    """The kernel refuses later writes of a fenced node, and the node that stands in reads what was
    written before.
    """
    capability = mount_capability(fs_type=kind)
    a, b = machine.node("a1"), machine.node("b1")
    id = await volume(a, capability)
    there = await used(a, id, capability)
    (there / "marker").write_text("from a")
    with opened(there / "late") as late:
        os.write(late, b"before")
        with raises(Code.FAILED_PRECONDITION, "in use on node a1 in r1/a"):
            await b.stage(id, capability)
        machine.take({"a": ["b"]})
        target = await used(b, id, capability)
        assert (target / "marker").read_text() == "from a"
        assert (target / "late").read_text() == "before"
        with pytest.raises(OSError, match="Errno") as refused:
            os.write(late, b"after")
        assert refused.value.errno in (errno.EIO, errno.ESHUTDOWN, errno.EROFS)
        assert mounts.at(there) is None
        (target / "marker").write_text("from b")
    assert (target / "late").read_text() == "before"

    machine.take({})
    with raises(Code.FAILED_PRECONDITION, "in use on node b1 in r1/b"):
        await a.stage(id, capability)
    await released(a, id)
    assert (target / "marker").read_text() == "from b"
    await released(b, id)
    again = await used(a, id, capability)
    assert (again / "marker").read_text() == "from b"
    await released(a, id)
    await a.delete(id)


async def test_writes_to_a_fenced_device_have_no_effect(machine: Machine) -> None:
    """Writes through the old device do not reach the volume."""
    capability = block_capability()
    a, b = machine.node("a1"), machine.node("b1")
    id = await volume(a, capability)
    there = await used(a, id, capability)
    with opened(there, device=True) as late:
        os.pwrite(late, b"a" * 4096, 0)
        os.fsync(late)
        machine.take({"a": ["b"]})
        target = await used(b, id, capability)
        with opened(target, device=True) as device:
            assert os.pread(device, 4096, 0) == b"a" * 4096
        try:
            os.pwrite(late, b"x" * 4096, 0)
            os.fsync(late)
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ENOSPC, errno.ENXIO)
        with opened(target, device=True) as device:
            os.posix_fadvise(device, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(device, 4096, 0) == b"a" * 4096
        # The dead node comes back and tidies up: the device of b stays.
        await released(a, id)
        with opened(target, device=True) as device:
            os.pwrite(device, b"b" * 4096, 0)
            os.fsync(device)
    await released(b, id)
    again = await used(a, id, capability)
    with opened(again, device=True) as device:
        assert os.pread(device, 4096, 0) == b"b" * 4096
    await released(a, id)
    await a.delete(id)


async def test_a_fenced_node_shows_no_pod_the_device_of_another(machine: Machine) -> None:
    """Another pod on the fenced node does not get the device of the node that took over."""
    capability = block_capability()
    a, b = machine.node("a1"), machine.node("b1")
    id = await volume(a, capability)
    await used(a, id, capability)
    machine.take({"a": ["b"]})
    await used(b, id, capability)
    await a.unpublish(id)
    with raises(Code.FAILED_PRECONDITION, "another node took the volume"):
        await a.publish(id, capability)
    await released(a, id)
    await released(b, id)
    await a.delete(id)


async def test_a_volume_is_not_unstaged_while_another_node_stages_it(machine: Machine) -> None:
    """Unstaging a volume while another call stages it is ABORTED: a device that was just attached
    stays.
    """
    capability = block_capability()
    a = machine.node("a1")
    id = await volume(a, capability)
    await a.stage(id, capability)
    entry = machine.data.journal.find(StoredKind.VOLUME, "v")
    assert entry is not None
    with (
        machine.data.locks.hold(mount_lock(entry)),
        raises(Code.ABORTED, "another call is at work"),
    ):
        await a.unstage(id)
    await a.unstage(id)
    await a.delete(id)


async def test_only_a_dead_holder_is_fenced(machine: Machine) -> None:
    """Neither a third zone nor the home zone takes the volume from a living stand-in."""
    capability = mount_capability()
    a, b, c = machine.node("a1"), machine.node("b1"), machine.node("c1")
    id = await volume(a, capability)
    machine.take({"a": ["b", "c"]})
    there = await used(b, id, capability)
    (there / "marker").write_text("from b")
    for other in (c, a):
        with raises(Code.FAILED_PRECONDITION, "in use on node b1"):
            await other.stage(id, capability)
    machine.take({"a": ["c"], "b": ["c"]})
    target = await used(c, id, capability)
    assert (target / "marker").read_text() == "from b"
    await released(b, id)
    await released(c, id)
    await a.delete(id)


async def test_a_node_of_the_failed_domain_fences_none(machine: Machine) -> None:
    """A node of the failed domain itself does not take a volume from its neighbour."""
    capability = mount_capability()
    a, other = machine.node("a1"), machine.node("a2")
    id = await volume(a, capability)
    await used(a, id, capability)
    machine.take({"a": ["b"]})
    with raises(Code.FAILED_PRECONDITION, "taken over itself"):
        await other.stage(id, capability)
    await released(a, id)
    await other.stage(id, capability)
    await other.unstage(id)
    await a.delete(id)


async def test_after_a_fence_nothing_is_left(machine: Machine) -> None:
    """No device, no mount, no second file is left once all nodes have unstaged."""
    with ExitStack() as stack:
        a, b = machine.node("a1"), machine.node("b1")
        id = await volume(a, mount_capability())
        there = await used(a, id, mount_capability())
        stack.enter_context(opened(there / "late"))
        machine.take({"r1/a": ["all"]})
        await used(b, id, mount_capability())
        await released(b, id)
    await released(a, id)
    (image,) = (machine.folder / "data" / "pools" / "pool-a").iterdir()
    assert loops.find(image, deleted=True) == []
    await a.delete(id)
    assert [*(machine.folder / "data" / "pools" / "pool-a").iterdir()] == []
