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
from zonewise.csi.errors import CsiError
from zonewise.csi.takeover.controller import ConfigMap, TakeoverSettings
from zonewise.csi.takeover.status import (
    AUTOMATIC_ANNOTATION,
    CONFIG_KEY,
    CONFIG_MAP,
    parse_automatic_domains,
)
from zonewise.csi.transport.calls import CallWorker
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.storage.configuration import edit_takeover, parse_configuration
from zonewise.storage.takeover.automatic import DomainTimes, decide_automatic

POLL_SECONDS = 10.0

_log = logger("csi")


class AutomaticLoop:
    """Runs endlessly; does nothing while it is off, or the storage cannot report failures."""

    def __init__(
        self,
        context: ControllerContext,
        settings: TakeoverSettings,
        *,
        storage: object,
        worker: CallWorker,
    ) -> None:
        self._context = context
        self._source = settings.source
        self._labels = settings.labels
        self._namespace = settings.namespace
        self._storage = storage
        self._worker = worker
        self._domain_times = DomainTimes()
        self._reported = ""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            try:
                await self.check_once()
            except Conflict as error:
                self._report(str(error))  # a concurrent write: what failed is still known
            except (ApiError, ConfigError, ConnectionFailed, CsiError, ProtocolError) as error:
                # What is not known is not failed: the pauses go on only with answers.
                self._domain_times = DomainTimes()
                self._report(str(error))
            await asyncio.sleep(POLL_SECONDS)

    async def check_once(self) -> None:
        """Look once, and write what follows."""
        settings, storage = self._source.current.automatic_takeover, self._storage
        if settings is None or self._source.problem is not None:
            self._domain_times = DomainTimes()
            return
        if not isinstance(storage, DomainHealth):
            self._report(
                "automatic-takeover is on, and this backend cannot tell which domain failed"
            )
            return
        domains, failed = await self._worker(lambda: storage.read_domain_health(self._labels))
        client = self._context.client
        config_map = await client.get(ConfigMap, CONFIG_MAP, self._namespace)
        text = str(config_map.get("data", CONFIG_KEY, default=""))
        written = parse_configuration(text, self._labels)
        annotated = parse_automatic_domains(config_map.metadata.annotations)
        # What a person has given back is not ours any more, and has a whole pause before it is.
        automatic = annotated & {*written.takeover.targets}
        down_since = {
            name: at
            for name, at in self._domain_times.down_since.items()
            if name not in annotated - automatic
        }
        decision = decide_automatic(
            settings,
            failed,
            domains,
            written.takeover,
            automatic,
            DomainTimes(down_since, self._domain_times.up_since),
            asyncio.get_running_loop().time(),
        )
        self._domain_times = decision.domain_times
        self._report("; ".join(reason.message for reason in decision.reasons if reason.fix))
        for name, target in decision.changes.items():
            automatic = automatic | {name} if target else automatic - {name}
        if automatic == annotated and not decision.changes:
            return
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": config_map.metadata.resource_version,
                "annotations": {AUTOMATIC_ANNOTATION: ",".join(sorted(automatic)) or None},
            }
        }
        if decision.changes:
            body["data"] = {CONFIG_KEY: edit_takeover(text, decision.changes, self._labels)}
        await client.patch(ConfigMap, CONFIG_MAP, self._namespace, body)
        for reason in decision.reasons:
            _log.warning(str(reason), reason=reason.code)
            self._context.recorder.event(
                config_map, reason.code, "Takeover", str(reason), type="Warning"
            )

    def _report(self, problem: str) -> None:
        if problem and problem != self._reported:
            _log.warning("nothing is taken over automatically now", why=problem)
        self._reported = problem
