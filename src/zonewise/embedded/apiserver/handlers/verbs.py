"""The verbs: reads, writes and deletions as HTTP answers."""

from __future__ import annotations

from zonewise.api.errors import NotFound, Status, StatusDetails
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers.deleting import Deleter, read_options
from zonewise.embedded.apiserver.handlers.patching import Patcher
from zonewise.embedded.apiserver.handlers.reading import Reader
from zonewise.embedded.apiserver.handlers.router import Verb
from zonewise.embedded.apiserver.handlers.update_checks import check_identity
from zonewise.embedded.apiserver.handlers.writing import WriteOutcome, Writer
from zonewise.embedded.apiserver.registry import ServedKind
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
        self.by_verb: dict[str, Verb] = {
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

    async def create(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """POST."""
        written = await self._writer.create(call, served, target, bodies.read_object(call, served))
        return await self._answer_written(call, served, written)

    async def update(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """PUT."""
        obj = bodies.read_object(call, served)
        check_identity(served, target, obj["metadata"])
        try:
            written = await self._writer.change(call, served, target, obj, retry=False)
        except NotFound:
            if not served.rules.creates_on_update:
                raise
            call.may_create()
            obj["metadata"].pop("resourceVersion", None)
            written = await self._writer.create(call, served, target, obj)
        return await self._answer_written(call, served, written)

    async def patch(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """PATCH."""
        return await self._answer_written(
            call, served, await self._patcher.patch(call, served, target)
        )

    async def update_status(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """PUT of the status subresource."""
        obj = bodies.read_object(call, served)
        check_identity(served, target, obj["metadata"])
        written = await self._writer.change(
            call, served, target, obj, subresource="status", retry=False
        )
        return await self._answer_written(call, served, written)

    async def patch_status(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """PATCH of the status subresource."""
        written = await self._patcher.patch(call, served, target, subresource="status")
        return await self._answer_written(call, served, written)

    async def delete(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """DELETE of one object."""
        options = read_options(call)
        deleted = await self._deleter.delete(call, served, target.namespace, target.name, options)
        if not deleted.is_deleted or served.rules.answers_deleted:
            # The only deletion that a real server answers with 202.
            waits = not deleted.is_deleted and options.raw.get("orphanDependents") is False
            return await self._reader.answer_object(
                call, served, deleted.entry, 202 if waits else 200
            )
        return _answer_deleted(served, deleted.entry)

    async def delete_collection(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """DELETE of all objects that a selector selects."""
        options = read_options(call)
        matches = self._reader.build_matcher(call, served, target)
        if matches is not None:
            await self._reader.convert_selectable(served, target)
        entries = self._deleter.candidates(served, target.namespace, matches)
        deleted = []
        for entry in entries:
            try:
                await self._deleter.delete(
                    call, served, entry.namespace, entry.name, options, is_named=False
                )
            except NotFound:
                continue
            deleted.append(entry)
        return await self._reader.answer_list(call, served, deleted)

    async def _answer_written(
        self, call: Call, served: ServedKind, written: WriteOutcome
    ) -> Answer:
        return await self._reader.answer_object(
            call, served, written.entry, 201 if written.created else 200
        )


def _answer_deleted(served: ServedKind, entry: Entry) -> Answer:
    resource = served.kind.resource
    status = Status(
        status="Success",
        details=StatusDetails(
            name=entry.name, group=resource.group, kind=resource.plural, uid=entry.uid
        ),
    )
    return Answer(body=encode_status(status))


async def answer_not_implemented(_call: Call, _served: ServedKind, target: Target) -> Answer:
    """Subresources that need a running container."""
    raise status_errors.not_implemented(
        f"{target.subresource} needs a running container, and this cluster runs none:"
        " its pods are simulated"
    )
