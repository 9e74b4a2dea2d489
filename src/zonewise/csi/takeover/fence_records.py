"""Which nodes are fenced from which volumes, as it is written.

It is in a ConfigMap of its own, ``csi-fences``, so that what grows with the volumes of fenced nodes
never keeps the status from being written: a ConfigMap holds one MiB, some 12,000 volumes.

Ceph's blocklist does not say whose its entries are: what is lost here, nobody lets in again. So a
record that cannot be read is kept as it is and reported, and the others count; a text that has no
records at all is never overwritten.

A record that the API server refuses is kept in memory, and written when it is taken: a node must
not go on writing to its volumes because its record does not fit. One writer, the leader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from zonewise.api.errors import AlreadyExists, ApiError, NotFound
from zonewise.api.reason import Reason
from zonewise.csi.backends.contract import HeldVolume
from zonewise.csi.takeover.controller import ConfigMap
from zonewise.runtime.client.client import Client

T = TypeVar("T")

FENCES_MAP = "csi-fences"
FENCES_KEY = "fences.json"


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """What of a node is fenced, or about to be; ``boot`` is the node's boot it was done in."""

    boot: str
    volumes: tuple[HeldVolume, ...] = ()
    confirmed: bool = False

    def add(self, boot: str, staged: list[HeldVolume]) -> FenceRecord:
        """With more clients, of the same volumes or of others; it is unconfirmed if there are."""
        clients = {(volume.cluster, volume.uuid): {*volume.clients} for volume in self.volumes}
        for volume in staged:
            clients.setdefault((volume.cluster, volume.uuid), set()).update(volume.clients)
        volumes = tuple(HeldVolume(*key, tuple(sorted(clients[key]))) for key in sorted(clients))
        if volumes == self.volumes:
            return replace(self, confirmed=self.confirmed and not staged)
        return FenceRecord(boot, volumes)


@dataclass(frozen=True, slots=True)
class WrittenFences:
    """The records by node, and what is there besides."""

    records: Mapping[str, FenceRecord] = field(default_factory=dict)
    unreadable: Mapping[str, Any] = field(default_factory=dict)
    """What is no record, by node, as it is."""
    problem: str = ""
    """Why the text has no records at all; empty if it may have."""


def parse_fences(text: str) -> WrittenFences:
    """Read what ``format_fences`` wrote; each record for itself."""
    try:
        nodes = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        return WrittenFences(problem=f"is not JSON: {error}")
    if not isinstance(nodes, dict):
        return WrittenFences(problem="is no JSON object")
    records: dict[str, FenceRecord] = {}
    unreadable: dict[str, Any] = {}
    for node, value in nodes.items():
        try:
            records[node] = _parse_record(value)
        except (KeyError, TypeError, AttributeError):
            unreadable[node] = value
    return WrittenFences(records, unreadable)


def _parse_record(value: Any) -> FenceRecord:
    volumes = [
        HeldVolume(cluster, uuid, tuple(_expect(client, str) for client in _expect(clients, list)))
        for cluster, clients_by_volume in value["volumes"].items()
        for uuid, clients in clients_by_volume.items()
    ]
    return FenceRecord(
        _expect(value["boot"], str), tuple(volumes), _expect(value["confirmed"], bool)
    )


def _expect(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError
    return value


def format_fences(fences: WrittenFences) -> str:
    """The text that ``parse_fences`` reads: short, because thousands of volumes may be in it."""
    nodes = {**fences.unreadable}
    for node, record in fences.records.items():
        volumes: dict[str, dict[str, list[str]]] = {}
        for volume in record.volumes:
            volumes.setdefault(volume.cluster, {})[volume.uuid] = [*volume.clients]
        nodes[node] = {"boot": record.boot, "confirmed": record.confirmed, "volumes": volumes}
    return json.dumps({node: nodes[node] for node in sorted(nodes)}, separators=(",", ":"))


class FenceRecords:
    """The records that are written, and those that could not be."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._written = WrittenFences()
        self._refused: dict[str, FenceRecord] = {}

    @property
    def by_node(self) -> dict[str, FenceRecord]:
        """The records of all nodes that have one; both where one became readable meanwhile."""
        written = self._written.records
        return {
            **written,
            **{
                node: written[node].add(record.boot, [*record.volumes])
                if node in written
                else record
                for node, record in self._refused.items()
            },
        }

    def is_written(self, node: str) -> bool:
        """Whether a node's record is where the next process finds it."""
        return node not in self._refused

    @property
    def problem(self) -> Reason | None:
        """What of the text cannot be read, and what to do about it."""
        written = self._written
        if not written.problem and not written.unreadable:
            return None
        text = f"{FENCES_KEY} of ConfigMap {FENCES_MAP}"
        return Reason(
            code="FencesUnreadable",
            message=f"{text} {written.problem}"
            if written.problem
            else f"{text} has an unreadable record of {', '.join(sorted(written.unreadable))}",
            object=f"ConfigMap/{self._namespace}/{FENCES_MAP}",
            fix="Nothing is written over it, and the clients it names stay fenced. Correct it, or"
            f" remove {'the key' if written.problem else 'these members'} and boot the nodes.",
        )

    async def read(self) -> None:
        """Read them all again."""
        try:
            config_map = await self._client.get(ConfigMap, FENCES_MAP, self._namespace)
        except NotFound:
            self._written = WrittenFences()
        else:
            self._written = parse_fences(str(config_map.get("data", FENCES_KEY, default="")))

    async def write(self, node: str, record: FenceRecord | None) -> str:
        """Write a node's record, or remove it; gives why that could not be done, or "".

        Of what cannot be done, a record is kept, and a removal is not.
        """
        written = self._written
        refusal = written.problem and f"{FENCES_KEY} of ConfigMap {FENCES_MAP} {written.problem}"
        if node in written.unreadable:
            refusal = f"its former record in ConfigMap {FENCES_MAP} cannot be read"
        records = {each: written.records[each] for each in written.records if each != node}
        if record is not None:
            records[node] = record
        changed = replace(written, records=records)
        if not refusal and changed != written:
            try:
                await self._put(changed)
            except ApiError as error:
                refusal = str(error)
            else:
                self._written = changed
        if refusal and record is not None:
            self._refused[node] = record
            return refusal
        self._refused.pop(node, None)
        return refusal if node in written.records else ""

    async def _put(self, fences: WrittenFences) -> None:
        text = format_fences(fences) if fences.records or fences.unreadable else None
        body: dict[str, Any] = {"data": {FENCES_KEY: text}}
        try:
            await self._client.patch(ConfigMap, FENCES_MAP, self._namespace, body)
        except NotFound:
            meta = {"name": FENCES_MAP, "namespace": self._namespace}
            with suppress(AlreadyExists):
                await self._client.create(ConfigMap({"metadata": meta, **body}))
                return
            await self._client.patch(ConfigMap, FENCES_MAP, self._namespace, body)
