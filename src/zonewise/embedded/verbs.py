"""What each verb answers: reads, writes and deletions put into HTTP's terms."""

from __future__ import annotations

from typing import Any

from zonewise.api.errors import NotFound, Status, StatusDetails
from zonewise.embedded import bodies, refusals
from zonewise.embedded.call import Answer, Call, encode_status
from zonewise.embedded.deleting import Deleter, read_options
from zonewise.embedded.entry import Entry
from zonewise.embedded.front import Verb
from zonewise.embedded.patching import Patcher
from zonewise.embedded.paths import Target
from zonewise.embedded.reading import Reader
from zonewise.embedded.registry import Served
from zonewise.embedded.writing import Writer, Written

Obj = dict[str, Any]


class Verbs:
    """The verbs of stored kinds."""

    def __init__(
        self, *, reader: Reader, writer: Writer, patcher: Patcher, deleter: Deleter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._patcher = patcher
        self._deleter = deleter
        self.table: dict[str, Verb] = {
            "get": reader.get,
            "list": reader.list,
            "watch": reader.watch,
            "create": self.create,
            "update": self.update,
            "patch": self.patch,
            "delete": self.delete,
            "deletecollection": self.delete_collection,
        }
        self.status: dict[str, Verb] = {
            "get": reader.get,
            "update": self.update_status,
            "patch": self.patch_status,
        }

    async def create(self, call: Call, served: Served, target: Target) -> Answer:
        """POST."""
        written = await self._writer.create(call, served, target, bodies.read(call, served))
        return self._written(call, served, written)

    async def update(self, call: Call, served: Served, target: Target) -> Answer:
        """PUT."""
        obj = bodies.read(call, served)
        self._writer.check_identity(served, target, obj["metadata"])
        try:
            written = await self._writer.change(call, served, target, lambda _: obj, again=False)
        except NotFound:
            if not served.rules.creates_on_update:
                raise
            call.may_create()
            obj["metadata"].pop("resourceVersion", None)
            obj["metadata"].setdefault("name", target.name)
            written = await self._writer.create(call, served, target, obj)
        return self._written(call, served, written)

    async def patch(self, call: Call, served: Served, target: Target) -> Answer:
        """PATCH."""
        return self._written(call, served, await self._patcher.patch(call, served, target))

    async def update_status(self, call: Call, served: Served, target: Target) -> Answer:
        """PUT of the status subresource."""
        obj = bodies.read(call, served)
        self._writer.check_identity(served, target, obj["metadata"])
        written = await self._writer.change(
            call,
            served,
            target,
            lambda _: obj,
            subresource="status",
            again=False,
        )
        return self._written(call, served, written)

    async def patch_status(self, call: Call, served: Served, target: Target) -> Answer:
        """PATCH of the status subresource."""
        written = await self._patcher.patch(call, served, target, subresource="status")
        return self._written(call, served, written)

    async def delete(self, call: Call, served: Served, target: Target) -> Answer:
        """DELETE of one object."""
        options = read_options(call)
        deleted = await self._deleter.delete(call, served, target.namespace, target.name, options)
        if not deleted.gone or served.rules.answers_deleted:
            # The only deletion that a real server calls accepted rather than done.
            waits = not deleted.gone and options.raw.get("orphanDependents") is False
            return self._reader.shown(call, served, deleted.entry, 202 if waits else 200)
        return _success(served, deleted.entry)

    async def delete_collection(self, call: Call, served: Served, target: Target) -> Answer:
        """DELETE of all that a selector selects."""
        options = read_options(call)
        matches = self._reader.matches(call, served, target)
        entries = self._deleter.candidates(served, target.namespace, matches)
        deleted = []
        for entry in entries:
            try:
                await self._deleter.delete(
                    call, served, entry.namespace, entry.name, options, named=False
                )
            except NotFound:
                continue
            deleted.append(entry)
        return self._reader.listed(call, served, deleted)

    def _written(self, call: Call, served: Served, written: Written) -> Answer:
        return self._reader.shown(call, served, written.entry, 201 if written.created else 200)


def _success(served: Served, entry: Entry) -> Answer:
    resource = served.kind.resource
    status = Status(
        status="Success",
        details=StatusDetails(
            name=entry.name, group=resource.group, kind=resource.plural, uid=entry.uid
        ),
    )
    return Answer(body=encode_status(status))


async def not_here(_call: Call, _served: Served, target: Target) -> Answer:
    """Subresources that need a container to be running."""
    raise refusals.not_built(
        f"{target.subresource} needs a running container, and this cluster runs none:"
        " its pods are simulated"
    )
