"""One call, whichever transport brought it: number, log line, deadline, and how it fails.

The services are plain blocking functions. ``Calls`` runs each in a worker (a thread, or inline
where time is virtual and threads would let it run ahead), so a slow disk never holds up the others.
Requests about different clusters, copies and probes have lanes of their own. The number of workers
bounds what a lane does at once; what waits beyond its deadline never starts.

A caller that disconnects does not stop a call that has begun: half a copy would be left behind. The
work runs to its end, its lock held meanwhile, and the same request repeated is answered by ABORTED
until then and by the result afterwards.

Every line written during a call carries its number (``call``), from the services and the backend
too. Of a message everything is written but the fields that CSI marks as secret. The mark
(``csi_secret``) is in the descriptors, so a field that a later version of the protocol adds is
hidden by its own declaration, not by our memory. Names of secret keys are hidden too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from structlog.contextvars import bound_contextvars

from zonewise.csi.errors import Code, CsiError, internal
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.methods import Method, Request, Response, ServedMethod
from zonewise.runtime.process.logs import logger
from zonewise.storage.errors import StorageError

T = TypeVar("T")

_log = logger("csi")


class CallWorker(Protocol):
    """Runs a blocking function without holding up the event loop, or says that it may.

    What is in one lane waits only for what is in the same.
    """

    def __call__(self, work: Callable[[], T], lane: str = "", /) -> Awaitable[T]: ...


async def run_inline(work: Callable[[], T], _lane: str = "") -> T:
    """Run it here and now: for virtual time."""
    return work()


class Calls:
    """The calls a driver answers."""

    def __init__(
        self,
        bindings: Iterable[ServedMethod],
        *,
        worker: CallWorker,
        lane: Callable[[Message], str] = lambda _: "",
    ) -> None:
        self.bindings = {binding.method.path: binding for binding in bindings}
        self._worker = worker
        self._lane = lane
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[Message]] = set()

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout: float | None = None
    ) -> Response:
        """Answer a request, or raise a ``CsiError``."""
        number = f"{os.getpid():x}-{next(self._numbers):x}"
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        with bound_contextvars(call=number, method=method.name):
            task = asyncio.create_task(self._answer(method, request, deadline))
            self._running.add(task)
            task.add_done_callback(self._call_ended)
            answer = await asyncio.shield(task)
        assert isinstance(answer, method.response_type)
        return answer

    def _call_ended(self, task: asyncio.Task[Message]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # logged where it was raised; its caller may have stopped waiting

    async def finish(self) -> None:
        """Wait for what has begun; the caller of this has stopped new calls from coming."""
        while self._running:
            await asyncio.wait(self._running)

    async def _answer(
        self, method: Method[Request, Response], request: Request, deadline: float | None
    ) -> Message:
        binding = self.bindings.get(method.path)
        log = _log.debug if method.quiet else _log.info
        started, identity = time.perf_counter(), _identifying_fields(request)
        try:
            if binding is None:
                raise CsiError(Code.UNIMPLEMENTED, f"{method.name} is not served here")
            if _log.detailed:
                _log.debug("asked", request=redact(request))
            serve, loop = binding.serve, asyncio.get_running_loop()

            def work() -> Message:
                if deadline is not None and loop.time() > deadline:
                    raise CsiError(
                        Code.DEADLINE_EXCEEDED, "the deadline passed before a worker was free"
                    )
                return serve(request)

            answer = await self._worker(work, self._lane(request))
        except StorageError as refused:
            error = CsiError(Code[refused.code.name], str(refused))
            log("refused", code=error.code.name, why=error.message, **identity)
            raise error from refused
        except CsiError as error:
            log("refused", code=error.code.name, why=error.message, **identity)
            raise
        except Exception as error:
            _log.exception("a call failed, which is a fault in zonewise", **identity)
            raise internal(
                f"{method.name} failed: {type(error).__name__}; see the driver's log"
            ) from error
        log("answered", ms=round((time.perf_counter() - started) * 1000, 1), **identity)
        if _log.detailed:
            _log.debug("answer", answer=redact(answer))
        return answer


def _identifying_fields(request: Message) -> dict[str, object]:
    """What a person looks for in a log: the name or id of the volume or snapshot."""
    return {
        field.name: value
        for field, value in request.ListFields()
        if field.name in ("name", "volume_id", "snapshot_id", "source_volume_id", "target_path")
    }


HIDDEN = "(hidden)"


def redact(message: Message) -> dict[str, object]:
    """The fields that are set, as plain values."""
    return {field.name: _redact_field(field, value) for field, value in message.ListFields()}


def _redact_field(field: FieldDescriptor, value: object) -> object:
    # The stubs type extensions more narrowly than the generator declares them.
    options: Any = field.GetOptions()
    if options.Extensions[csi.csi_secret]:
        return HIDDEN
    message_type: Descriptor | None = field.message_type
    if message_type is not None and message_type.GetOptions().map_entry:
        value_field = message_type.fields_by_name["value"]
        values = cast("Mapping[str, object]", value)
        return {str(key): _plain_value(value_field, item) for key, item in sorted(values.items())}
    if field.is_repeated:
        return [_plain_value(field, item) for item in cast("Iterable[object]", value)]
    return _plain_value(field, value)


def _plain_value(field: FieldDescriptor, value: object) -> object:
    if isinstance(value, Message):
        return redact(value)
    enum_type: EnumDescriptor | None = field.enum_type
    if enum_type is not None and isinstance(value, int):
        enum_value = enum_type.values_by_number.get(value)
        return enum_value.name if enum_value is not None else value
    return value
