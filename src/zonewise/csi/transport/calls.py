"""One call, whichever transport brought it: number, log line, deadline, and how it fails.

The services are plain blocking functions. ``Calls`` runs each in a worker (a thread, or inline
where time is virtual and threads would let it run ahead), so a slow disk never holds up the others.
Requests about different clusters, copies and probes have lanes of their own. The number of workers
bounds what a lane does at once; what waits beyond its deadline never starts.

A caller that disconnects does not stop a call that has begun: half a copy would be left behind. The
work runs to its end, its lock held meanwhile, and the same request repeated is answered by ABORTED
until then and by the result afterwards.

Every line written during a call carries its number (``call``), from the services and the backend
too. Secrets are not in these lines: see ``redaction``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from google.protobuf.message import Message
from structlog.contextvars import bound_contextvars

from zonewise.csi.errors import Code, CsiError
from zonewise.csi.transport.methods import Method, Request, Response, ServedMethod
from zonewise.csi.transport.redaction import redact
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
        started = time.perf_counter()
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
            log("refused", code=error.code.name, why=error.message, **_identifying_fields(request))
            raise error from refused
        except CsiError as error:
            log("refused", code=error.code.name, why=error.message, **_identifying_fields(request))
            raise
        except Exception as error:
            _log.exception(
                "a call failed, which is a fault in zonewise", **_identifying_fields(request)
            )
            raise CsiError(
                Code.INTERNAL, f"{method.name} failed: {type(error).__name__}; see the driver's log"
            ) from error
        log(
            "answered",
            ms=round((time.perf_counter() - started) * 1000, 1),
            **_identifying_fields(request),
        )
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
