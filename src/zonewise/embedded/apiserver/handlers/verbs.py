"""What each verb answers: reads, writes and deletions put into HTTP's terms."""

from __future__ import annotations

from zonewise.api.errors import NotFound, Status, StatusDetails
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers.deleting import Deleter, read_options
from zonewise.embedded.apiserver.handlers.patching import Patcher
from zonewise.embedded.apiserver.handlers.reading import Reader
from zonewise.embedded.apiserver.handlers.router import Verb
from zonewise.embedded.apiserver.handlers.update_checks import check_identity
from zonewise.embedded.apiserver.handlers.writing import Writer, Written
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, encode_status
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.entry import Entry


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
        return await self._written(call, served, written)

    async def update(self, call: Call, served: Served, target: Target) -> Answer:
        """PUT."""
        obj = bodies.read(call, served)
        check_identity(served, target, obj["metadata"])
        try:
            written = await self._writer.change(call, served, target, obj, again=False)
        except NotFound:
            if not served.rules.creates_on_update:
                raise
            call.may_create()
            obj["metadata"].pop("resourceVersion", None)
            written = await self._writer.create(call, served, target, obj)
        return await self._written(call, served, written)

    async def patch(self, call: Call, served: Served, target: Target) -> Answer:
        """PATCH."""
        return await self._written(call, served, await self._patcher.patch(call, served, target))

    async def update_status(self, call: Call, served: Served, target: Target) -> Answer:
        """PUT of the status subresource."""
        obj = bodies.read(call, served)
        check_identity(served, target, obj["metadata"])
        written = await self._writer.change(
            call, served, target, obj, subresource="status", again=False
        )
        return await self._written(call, served, written)

    async def patch_status(self, call: Call, served: Served, target: Target) -> Answer:
        """PATCH of the status subresource."""
        written = await self._patcher.patch(call, served, target, subresource="status")
        return await self._written(call, served, written)

    async def delete(self, call: Call, served: Served, target: Target) -> Answer:
        """DELETE of one object."""
        options = read_options(call)
        deleted = await self._deleter.delete(call, served, target.namespace, target.name, options)
        if not deleted.gone or served.rules.answers_deleted:
            # The only deletion that a real server calls accepted rather than done.
            waits = not deleted.gone and options.raw.get("orphanDependents") is False
            return await self._reader.shown(call, served, deleted.entry, 202 if waits else 200)
        return _success(served, deleted.entry)

    async def delete_collection(self, call: Call, served: Served, target: Target) -> Answer:
        """DELETE of all that a selector selects."""
        options = read_options(call)
        matches = self._reader.matches(call, served, target)
        if matches is not None:
            await self._reader.selectable(served, target)
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
        return await self._reader.listed(call, served, deleted)

    async def _written(self, call: Call, served: Served, written: Written) -> Answer:
        return await self._reader.shown(
            call, served, written.entry, 201 if written.created else 200
        )


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
    raise status_errors.not_built(
        f"{target.subresource} needs a running container, and this cluster runs none:"
        " its pods are simulated"
    )
