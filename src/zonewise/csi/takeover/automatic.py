"""Takes failed domains over without an administrator, where the configuration says so.

The backend is asked every ten seconds which domains have failed. The decision is written where an
administrator would write it, into the ConfigMap of the configuration, so there is one source of
truth, and one way to follow it. Which entries were made here is an annotation of the same
ConfigMap: what an administrator wrote is never removed. Pauses are counted in memory: a new leader
restarts them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from zonewise.api.errors import ApiError, ConfigError, Conflict, ConnectionFailed, ProtocolError
from zonewise.csi.backends.contract import DomainHealth
from zonewise.csi.status import CsiError
from zonewise.csi.takeover.controller import ConfigMap
from zonewise.csi.takeover.source import TakeoverSource
from zonewise.csi.takeover.status import CONFIG, KEY, MARK, automatic_marks
from zonewise.csi.transport.calls import CallWorker
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.takeover.automatic import DomainWatch, decide_automatic
from zonewise.storage.takeover.editing import with_takeover_of

EVERY = 10.0

_log = logger("csi")


class AutomaticLoop:
    """Runs endlessly; does nothing while it is off, or the storage cannot report failures."""

    def __init__(
        self,
        context: ComponentContext,
        source: TakeoverSource,
        labels: DomainLabels,
        storage: object,
        worker: CallWorker,
        *,
        namespace: str,
    ) -> None:
        self._context = context
        self._source = source
        self._labels = labels
        self._storage = storage
        self._worker = worker
        self._namespace = namespace
        self._watch = DomainWatch()
        self._told = ""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            try:
                await self.look()
            except Conflict as error:
                self._tell(str(error))  # a concurrent write: what failed is still known
            except (ApiError, ConfigError, ConnectionFailed, CsiError, ProtocolError) as error:
                # What is not known is not failed: the pauses go on only with answers.
                self._watch = DomainWatch()
                self._tell(str(error))
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Look once, and write what follows."""
        settings, storage = self._source.current.automatic, self._storage
        if settings is None or self._source.problem is not None:
            self._watch = DomainWatch()
            return
        if not isinstance(storage, DomainHealth):
            self._tell("automatic-takeover is on, and this backend cannot tell which domain failed")
            return
        known, failed = await self._worker(lambda: storage.domains(self._labels))
        client = self._context.client
        found = await client.get(ConfigMap, CONFIG, self._namespace)
        text = str(found.get("data", KEY, default=""))
        written = parse_configuration(text, self._labels)
        marked = automatic_marks(found.metadata.annotations)
        # What a person has given back is not ours any more, and has a whole pause before it is.
        marks = marked & {*written.takeover.targets}
        down = {one: at for one, at in self._watch.down.items() if one not in marked - marks}
        decision = decide_automatic(
            settings,
            failed,
            known,
            written.takeover,
            marks,
            DomainWatch(down, self._watch.up),
            asyncio.get_running_loop().time(),
        )
        self._watch = decision.watch
        self._tell("; ".join(one.message for one in decision.reasons if one.fix))
        for name, by in decision.changes.items():
            marks = marks | {name} if by else marks - {name}
        if marks == marked and not decision.changes:
            return
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": found.metadata.resource_version,
                "annotations": {MARK: ",".join(sorted(marks)) or None},
            }
        }
        if decision.changes:
            body["data"] = {KEY: with_takeover_of(text, decision.changes, self._labels)}
        await client.patch(ConfigMap, CONFIG, self._namespace, body)
        for one in decision.reasons:
            _log.warning(str(one), reason=one.code)
            self._context.recorder.event(
                found, type="Warning", reason=one.code, action="Takeover", note=str(one)
            )

    def _tell(self, problem: str) -> None:
        if problem and problem != self._told:
            _log.warning("nothing is taken over automatically now", why=problem)
        self._told = problem
