"""What requests mean: capabilities, sizes and topology as plain values, or INVALID_ARGUMENT."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zonewise.csi.backends.contract import BLOCK, FOLDER, ControllerBackend, MountRequest
from zonewise.csi.errors import Code, CsiError, invalid, precondition, unavailable
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.storage.identifiers import StorageId, StoredKind
from zonewise.storage.journal import JournalEntry
from zonewise.storage.placement import AccessibilityRequirement
from zonewise.storage.pools import PoolState

DEFAULT_SIZE = 1 << 30
NAME_LIMIT = 128
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
SIZE_LIMIT = 1 << 60

_Mode = csi.VolumeCapability.AccessMode.Mode
_MULTI_WRITER_MODES = frozenset({_Mode.MULTI_NODE_SINGLE_WRITER, _Mode.MULTI_NODE_MULTI_WRITER})
_MULTI_NODE_MODES = _MULTI_WRITER_MODES | {_Mode.MULTI_NODE_READER_ONLY}
_READER_MODES = frozenset({_Mode.SINGLE_NODE_READER_ONLY, _Mode.MULTI_NODE_READER_ONLY})
_KNOWN_MODES = frozenset(_Mode.values()) - {_Mode.UNKNOWN}


@dataclass(frozen=True, slots=True)
class SizeRange:
    """How large a volume may be; 0 is unset."""

    required: int = 0
    limit: int = 0

    def choose(self, backend: ControllerBackend, access: str, source: JournalEntry | None) -> int:
        """The size it gets; OUT_OF_RANGE if there is none."""
        source_bytes = source.bytes if source is not None else 0
        if self.required and self.required < source_bytes:
            raise _out_of_range(
                f"the source has {source_bytes} bytes, more than the {self.required} required"
            )
        requested = self.required or source_bytes or min(DEFAULT_SIZE, self.limit or DEFAULT_SIZE)
        size = backend.round_size(requested, access)
        if self.limit and size > self.limit:
            raise _out_of_range(
                f"a volume stored as {access} takes {size} bytes, above the limit {self.limit}"
            )
        return size


def parse_size_range(message: csi.CapacityRange) -> SizeRange:
    """A capacity range, checked."""
    required, limit = message.required_bytes, message.limit_bytes
    if required < 0 or limit < 0 or required > SIZE_LIMIT:
        raise _out_of_range(f"{required} to {limit} bytes is not a size")
    if limit and required > limit:
        raise _out_of_range(f"{required} bytes are required and {limit} are the limit")
    return SizeRange(required, limit)


def choose_access(
    capabilities: Sequence[csi.VolumeCapability],
    backend: ControllerBackend,
    source: JournalEntry | None = None,
) -> str:
    """How a volume with these capabilities is kept; all of them together must be possible."""
    if not capabilities:
        raise invalid("volume_capabilities is missing")
    access_types = {_access_type_of(capability) for capability in capabilities}
    file_systems = {
        capability.mount.fs_type for capability in capabilities if capability.mount.fs_type
    }
    if len(access_types) > 1 or len(file_systems) > 1:
        raise invalid("a volume is a device or one file system, not several of them")
    block = access_types == {"block"}
    shared = any(capability.access_mode.mode in _MULTI_WRITER_MODES for capability in capabilities)
    file_system = next(iter(file_systems), "")
    access = backend.choose_access(file_system, block=block, shared=shared)
    if source is None or access == source.access:
        return access
    if not (block or file_system or shared or source.access == BLOCK):
        return source.access
    if BLOCK in (access, source.access) and FOLDER not in (access, source.access):
        return access
    raise invalid(f"the source is stored as {source.access} and cannot become {access}")


def find_mismatch(capabilities: Sequence[csi.VolumeCapability], entry: JournalEntry) -> str:
    """Why an existing volume cannot be used that way; empty if it can."""
    for capability in capabilities:
        access_type = _access_type_of(capability)
        if (access_type == "block") != (entry.access == BLOCK):
            return f"the volume is stored as {entry.access} and was requested as {access_type}"
        file_system = capability.mount.fs_type
        if file_system and file_system != entry.access:
            return f"the volume is stored as {entry.access} and was requested as {file_system}"
        if capability.access_mode.mode in _MULTI_WRITER_MODES and entry.access != FOLDER:
            return f"a volume stored as {entry.access} cannot be written by several nodes"
    return ""


def find_context_mismatch(requested: Mapping[str, str], context: Mapping[str, str]) -> str:
    """Why a given volume context is not the volume's; empty if it is, or none is given.

    Keys with a prefix are other components': a provisioner adds its identity.
    """
    requested_own = {key: value for key, value in requested.items() if "/" not in key}
    differing = [
        key
        for key in sorted({*requested_own, *context})
        if requested_own.get(key) != context.get(key)
    ]
    if not requested_own or not differing:
        return ""
    expected = ", ".join(f"{key} {value!r}" for key, value in sorted(context.items()))
    return f"volume_context differs in {', '.join(differing)}: the volume has {expected}"


def require_pool(name: str, states: Mapping[str, PoolState], purpose: str) -> PoolState:
    """The state of a volume's pool; UNAVAILABLE while it is dead: a retry may find it repaired.

    Writing to a dead pool would wait for its storage as long as the caller does.
    """
    state = states.get(name)
    if state is None:
        raise precondition(f"pool {name} is not in the configuration any more")
    if not state.usable:
        raise unavailable(
            f"pool {name} is not alive, its health is {state.health}; {purpose} has to wait until"
            " it is repaired"
        )
    return state


def parse_mount_request(
    capability: csi.VolumeCapability, entry: JournalEntry, *, readonly: bool
) -> MountRequest:
    """How a node is to use an entry's volume."""
    mode = capability.access_mode.mode
    if any("\0" in flag for flag in capability.mount.mount_flags):
        raise invalid("a mount flag has a character that cannot be in one")
    return MountRequest(
        access=entry.access,
        flags=tuple(capability.mount.mount_flags),
        readonly=readonly or mode in _READER_MODES,
        shared=mode in _MULTI_NODE_MODES,
        single_writer=mode == _Mode.SINGLE_NODE_SINGLE_WRITER,
    )


def parse_requirement(message: csi.TopologyRequirement) -> AccessibilityRequirement | None:
    """From where a volume must be usable; None if unset."""
    if not message.requisite and not message.preferred:
        return None
    return AccessibilityRequirement(
        requisite=tuple(dict(term.segments) for term in message.requisite),
        preferred=tuple(dict(term.segments) for term in message.preferred),
    )


def check_name(name: str) -> str:
    """A request's name: there, and not longer than the protocol allows."""
    if not name:
        raise invalid("name is missing")
    if len(name.encode()) > NAME_LIMIT:
        raise invalid(f"name is longer than {NAME_LIMIT} bytes")
    if _CONTROL_CHARACTERS.search(name):
        raise invalid(f"name {name!r} has a control character")
    return name


def parse_source(request: csi.CreateVolumeRequest) -> tuple[StoredKind, str] | None:
    """What a new volume is made from; None if it starts empty."""
    if not request.HasField("volume_content_source"):
        return None
    message = request.volume_content_source
    kind = message.WhichOneof("type")
    if kind is None:
        raise invalid("volume_content_source names neither a snapshot nor a volume")
    if kind == "snapshot":
        source = (StoredKind.SNAPSHOT, message.snapshot.snapshot_id)
    else:
        source = (StoredKind.VOLUME, message.volume.volume_id)
    if not source[1]:
        raise invalid(f"volume_content_source.{kind} has no id")
    return source


def render_content_source(source: str) -> csi.VolumeContentSource | None:
    """The source of an entry as an answer has it."""
    if not source:
        return None
    if source.startswith("snap-"):
        origin = csi.VolumeContentSource.SnapshotSource(snapshot_id=source)
        return csi.VolumeContentSource(snapshot=origin)
    return csi.VolumeContentSource(volume=csi.VolumeContentSource.VolumeSource(volume_id=source))


def id_of(entry: JournalEntry) -> str:
    """The id of an entry."""
    attributes = entry.attributes
    return str(
        StorageId(
            entry.kind,
            entry.uuid,
            int(attributes.get("journalPool", "0")),
            attributes.get("cluster", ""),
        )
    )


def _access_type_of(capability: csi.VolumeCapability) -> str:
    access_type: str | None = capability.WhichOneof("access_type")
    if access_type is None:
        raise invalid("a volume capability says neither block nor mount")
    if capability.access_mode.mode not in _KNOWN_MODES:
        raise invalid("a volume capability has no access mode, or one that is not known")
    return access_type


def _out_of_range(message: str) -> CsiError:
    return CsiError(Code.OUT_OF_RANGE, message)
