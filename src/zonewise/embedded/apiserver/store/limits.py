"""Limits of the memory and the disk space that a state uses beside the objects themselves."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """All limits, with their default values.

    History: how far back a watch may resume and an exact list may look. ``history_age`` counts in
    seconds; the newest ``history_keep`` events may grow older than that, for watches only.
    """

    history_events: int = 50_000
    history_bytes: int = 64 * MIB
    history_age: float = 300.0
    history_keep: int = 1_000

    batch_writes: int = 1_024
    """Writes in one commit."""
    batch_bytes: int = 4 * MIB
    pending_writes: int = 8_192
    """Writes that wait for their commit; more are refused."""
    pending_bytes: int = 64 * MIB

    waste_bytes: int = 4 * MIB
    """Bytes in the log beyond twice the objects and the history before it is compacted."""
    compact_bytes: int = 1 * MIB
    """Bytes that one step of compaction reads."""

    chunk_bytes: int = 64 * 1024
    """Bytes that a watcher takes at once, unless one event alone is larger."""
    lag_events: int = 10_000
    """How far a watcher may fall behind before its stream is closed."""
    lag_bytes: int = 16 * MIB
    encoding_bytes: int = 8 * MIB
    """Encoded events that are cached for other watchers of the same representation."""

    unsynced_writes: int = 1_000
    """Writes that are stored with the next commit, see ``State.write(durable=False)``."""
    unsynced_seconds: float = 1.0
    retry_seconds: float = 1.0
    """How long writes are refused after the disk was full, before one is tried again."""
