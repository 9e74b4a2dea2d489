"""What requests mean: capabilities, sizes and topology as plain values, or INVALID_ARGUMENT."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zonewise.csi.backends.contract import BLOCK, FOLDER, ControllerBackend, Wanted
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.status import Code, CsiError, invalid
from zonewise.storage.identifiers import StorageId, Stored
from zonewise.storage.journal import JournalEntry
from zonewise.storage.placement import AccessibilityRequirement

DEFAULT_SIZE = 1 << 30
NAME_LIMIT = 128
_BANNED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
LARGEST = 1 << 60

_Mode = csi.VolumeCapability.AccessMode.Mode
_WRITERS = frozenset({_Mode.MULTI_NODE_SINGLE_WRITER, _Mode.MULTI_NODE_MULTI_WRITER})
_SHARED = _WRITERS | {_Mode.MULTI_NODE_READER_ONLY}
_READERS = frozenset({_Mode.SINGLE_NODE_READER_ONLY, _Mode.MULTI_NODE_READER_ONLY})
_KNOWN = frozenset(_Mode.values()) - {_Mode.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a volume may be; 0 is unset."""

    required: int = 0
    limit: int = 0

    def choose(self, backend: ControllerBackend, access: str, source: JournalEntry | None) -> int:
        """The size it gets; OUT_OF_RANGE if there is none."""
        least = source.bytes if source is not None else 0
        if self.required and self.required < least:
            raise _range(f"the source has {least} bytes, more than the {self.required} required")
        wanted = self.required or least or min(DEFAULT_SIZE, self.limit or DEFAULT_SIZE)
        size = backend.size(wanted, access)
        if self.limit and size > self.limit:
            raise _range(
                f"a volume kept as {access} takes {size} bytes, above the limit {self.limit}"
            )
        return size


def sizes(message: csi.CapacityRange) -> Sizes:
    """A capacity range, checked."""
    required, limit = message.required_bytes, message.limit_bytes
    if required < 0 or limit < 0 or required > LARGEST:
        raise _range(f"{required} to {limit} bytes is not a size")
    if limit and required > limit:
        raise _range(f"{required} bytes are required and {limit} are the limit")
    return Sizes(required, limit)


def access_of(
    capabilities: Sequence[csi.VolumeCapability],
    backend: ControllerBackend,
    source: JournalEntry | None = None,
) -> str:
    """How a volume with these capabilities is kept; all of them together must be possible."""
    if not capabilities:
        raise invalid("volume_capabilities is missing")
    kinds = {_kind(one) for one in capabilities}
    systems = {one.mount.fs_type for one in capabilities if one.mount.fs_type}
    if len(kinds) > 1 or len(systems) > 1:
        raise invalid("a volume is a device or one file system, not several of them")
    block = kinds == {"block"}
    shared = any(one.access_mode.mode in _WRITERS for one in capabilities)
    asked = next(iter(systems), "")
    kept = backend.access(asked, block=block, shared=shared)
    if source is None or kept == source.access:
        return kept
    if not (block or asked or shared or source.access == BLOCK):
        return source.access
    if BLOCK in (kept, source.access) and FOLDER not in (kept, source.access):
        return kept
    raise invalid(f"the source is kept as {source.access} and cannot become {kept}")


def mismatch(capabilities: Sequence[csi.VolumeCapability], entry: JournalEntry) -> str:
    """Why an existing volume cannot be used that way; empty if it can."""
    for one in capabilities:
        kind = _kind(one)
        if (kind == "block") != (entry.access == BLOCK):
            return f"the volume is kept as {entry.access} and was asked for as {kind}"
        system = one.mount.fs_type
        if system and system != entry.access:
            return f"the volume is kept as {entry.access} and was asked for as {system}"
        if one.access_mode.mode in _WRITERS and entry.access != FOLDER:
            return f"a volume kept as {entry.access} cannot be written by several nodes"
    return ""


def context_mismatch(given: Mapping[str, str], context: Mapping[str, str]) -> str:
    """Why a given volume context is not the volume's; empty if it is, or none is given.

    Keys with a prefix are other components': a provisioner adds its identity.
    """
    own = {key: value for key, value in given.items() if "/" not in key}
    differing = [key for key in sorted({*own, *context}) if own.get(key) != context.get(key)]
    if not own or not differing:
        return ""
    said = ", ".join(f"{key} {value!r}" for key, value in sorted(context.items()))
    return f"volume_context differs in {', '.join(differing)}: the volume has {said}"


def wanted(capability: csi.VolumeCapability, entry: JournalEntry, *, readonly: bool) -> Wanted:
    """How a node is to use an entry's volume."""
    mode = capability.access_mode.mode
    if any("\0" in flag for flag in capability.mount.mount_flags):
        raise invalid("a mount flag has a character that cannot be in one")
    return Wanted(
        access=entry.access,
        flags=tuple(capability.mount.mount_flags),
        readonly=readonly or mode in _READERS,
        shared=mode in _SHARED,
        single_writer=mode == _Mode.SINGLE_NODE_SINGLE_WRITER,
    )


def requirement(message: csi.TopologyRequirement) -> AccessibilityRequirement | None:
    """From where a volume must be usable; None if unset."""
    if not message.requisite and not message.preferred:
        return None
    return AccessibilityRequirement(
        requisite=tuple(dict(term.segments) for term in message.requisite),
        preferred=tuple(dict(term.segments) for term in message.preferred),
    )


def checked_name(name: str) -> str:
    """A request's name: there, and not longer than the protocol allows."""
    if not name:
        raise invalid("name is missing")
    if len(name.encode()) > NAME_LIMIT:
        raise invalid(f"name is longer than {NAME_LIMIT} bytes")
    if _BANNED.search(name):
        raise invalid(f"name {name!r} has a control character")
    return name


def source_id(request: csi.CreateVolumeRequest) -> tuple[Stored, str] | None:
    """What a new volume is made from; None if it starts empty."""
    if not request.HasField("volume_content_source"):
        return None
    message = request.volume_content_source
    kind = message.WhichOneof("type")
    if kind is None:
        raise invalid("volume_content_source names neither a snapshot nor a volume")
    if kind == "snapshot":
        found = (Stored.SNAPSHOT, message.snapshot.snapshot_id)
    else:
        found = (Stored.VOLUME, message.volume.volume_id)
    if not found[1]:
        raise invalid(f"volume_content_source.{kind} has no id")
    return found


def content_source(source: str) -> csi.VolumeContentSource | None:
    """The source of an entry as an answer has it."""
    if not source:
        return None
    if source.startswith("snap-"):
        return csi.VolumeContentSource(
            snapshot=csi.VolumeContentSource.SnapshotSource(snapshot_id=source)
        )
    return csi.VolumeContentSource(volume=csi.VolumeContentSource.VolumeSource(volume_id=source))


def id_of(entry: JournalEntry) -> str:
    """The id of an entry."""
    kept = entry.attributes
    return str(
        StorageId(
            entry.stored, entry.uuid, int(kept.get("journalPool", "0")), kept.get("cluster", "")
        )
    )


def _kind(capability: csi.VolumeCapability) -> str:
    kind: str | None = capability.WhichOneof("access_type")
    if kind is None:
        raise invalid("a volume capability says neither block nor mount")
    if capability.access_mode.mode not in _KNOWN:
        raise invalid("a volume capability has no access mode, or one that is not known")
    return kind


def _range(sentence: str) -> CsiError:
    return CsiError(Code.OUT_OF_RANGE, sentence)
