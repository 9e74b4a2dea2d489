"""What a backend must do, so that journal, placement and the services are the same for all.

The controller half makes, copies, grows and removes what a journal entry says; every call may be
repeated and may find that an earlier one was half done. The node half mounts it at a path. Calls
block and may be made from several threads; the services ensure that no two work on one volume at
once. A backend raises ``CsiError``, or ``StorageError`` from the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.journal import Image, JournalEntry
from zonewise.storage.parameters import ClassParameters
from zonewise.storage.pools import PoolState
from zonewise.storage.takeover.dead_nodes import VolumeHolder

BLOCK = "block"
FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a mounted volume is; ``inodes`` is empty where they are not counted."""

    total: int
    used: int
    available: int
    inodes: tuple[int, int, int] | None = None
    """Total, used, available."""


@dataclass(frozen=True, slots=True)
class MountRequest:
    """How a node is to use a volume."""

    access: str
    """``block``, ``folder``, or the file system."""
    flags: tuple[str, ...] = ()
    """Mount options of the class."""
    readonly: bool = False
    shared: bool = False
    """Whether other nodes use it at the same time."""
    single_writer: bool = False
    """Whether it may be at one target path only."""
    node: str = ""
    """The node that stages it."""
    read_domain: Mapping[str, str] = field(default_factory=dict)
    """Where it is best read from: the node's domain, if the configuration asks for it."""


class ControllerBackend(Protocol):
    """Makes and removes volumes and snapshots."""

    @property
    def backend_keys(self) -> frozenset[str]:
        """The keys of a class that only this backend understands."""

    @property
    def evident(self) -> bool:
        """Whether ``image`` of an empty volume proves that ``make`` has finished it."""

    def prepare_attributes(
        self, parameters: ClassParameters, request: Mapping[str, str]
    ) -> dict[str, str]:
        """What a new entry keeps for the backend, of the class and of all of its request's keys.

        Called before the journal is read; raises INVALID_ARGUMENT for a class it cannot serve.
        """

    def prepare(self, configuration: StorageConfiguration) -> None:
        """Make the declared pools, if missing; called at the start and after a reload."""

    def pool_states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """What is known about the pools now."""

    def choose_access(self, file_system: str, *, block: bool, shared: bool) -> str:
        """How a requested volume is kept, as an entry records it; raises INVALID_ARGUMENT."""

    def round_size(self, bytes: int, access: str) -> int:
        """The size such a volume really gets: not smaller than requested."""

    def find_image(self, entry: JournalEntry) -> Image | None:
        """The image of an entry, if it exists."""

    def make(self, entry: JournalEntry, source: JournalEntry | None) -> bool:
        """Make what an entry says, empty or as a copy; complete or not at all.

        False if something of that name exists already: look what it is.
        """

    def remove(self, entry: JournalEntry) -> None:
        """Remove all of it, finished or not; no error if it does not exist.

        What is there and is not ours stays.
        """

    def grow(self, entry: JournalEntry) -> bool:
        """Make it as large as the entry says; whether nodes have to follow."""

    def find_user(self, entry: JournalEntry) -> str:
        """What uses it on this machine; empty if nothing does."""

    def list_images(self) -> Sequence[Image]:
        """Everything in all pools, finished or not."""


class NodeBackend(Protocol):
    """Brings volumes to paths of one node. Every call may be repeated."""

    def stage(self, entry: JournalEntry, staging: Path, request: MountRequest) -> None:
        """Make the file system if there is none, and mount it; a device is only attached."""

    def unstage(self, uuid: str, staging: Path) -> None:
        """The reverse; nothing staged is fine."""

    def publish(
        self, entry: JournalEntry, staging: Path, target: Path, request: MountRequest
    ) -> None:
        """Show the staged volume at a pod's path."""

    def unpublish(self, uuid: str, target: Path) -> None:
        """Remove it and the path; nothing there is fine, and what is not ours is left alone."""

    def measure_usage(self, entry: JournalEntry, path: Path) -> Usage:
        """How full it is; NOT_FOUND if it is not at that path."""

    def expand(self, entry: JournalEntry, path: Path) -> None:
        """Let device and file system follow the image's size."""


@runtime_checkable
class ExclusiveNode(Protocol):
    """A node half whose volumes one node uses at a time: it records which, and fences others.

    Where many nodes may write at once (folders, CephFS) it is taken from nobody.
    """

    def find_holder(self, entry: JournalEntry, staging: Path) -> VolumeHolder | None:
        """Its holder, other than at this staging path; None if there is none."""

    def record_holder(self, entry: JournalEntry, holder: VolumeHolder) -> None:
        """Record its holder from now on; ABORTED if another node was faster."""

    def clear_holder(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, if that node had it."""

    def fence(self, entry: JournalEntry) -> None:
        """Fence every holder: nothing they still write reaches the volume.

        Called before this node maps the volume, so the fenced node is never this one.
        """

    def abandon_staging(self, entry: JournalEntry, staging: Path) -> None:
        """Unmount a staging path whose volume another node has now; the volume is not touched."""


@dataclass(frozen=True, slots=True)
class HeldVolume:
    """A volume of one node, and the clients of the storage through which the node has it."""

    cluster: str
    uuid: str
    clients: tuple[str, ...] = ()
    """Their addresses, sorted; none where the storage needs none to fence."""


@runtime_checkable
class NodeFencing(Protocol):
    """Storage that can fence a node that is out of service, from anywhere."""

    def find_held(self, node: str) -> tuple[list[HeldVolume], list[str]]:
        """Volumes that a node has and is not fenced from, and what could not be looked at."""

    def fence_held(self, node: str, volume: HeldVolume) -> None:
        """Fence these clients; raises unless it is certain that the node has none left.

        Until then no other node gets the volume; afterwards any may have it.
        """

    def unfence_held(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """Let the clients in again. False, and they stay out, if they might harm another node:
        the volume is not this node's any more, and a client may have survived in it.
        """


@runtime_checkable
class DomainHealth(Protocol):
    """Storage that can report which domains have failed."""

    def read_domain_health(self, labels: DomainLabels) -> tuple[frozenset[str], frozenset[str]]:
        """All domains it can judge, and those of them that have failed; by their short names."""
