"""Takes failed domains over without an administrator, where the configuration says so.

The sources are asked every ten seconds which domains have failed: the storage, and the conditions
of nodes. The decision is written where an administrator would write it, into the ConfigMap of the
configuration, so there is one source of truth, and one way to follow it. Which entries were made
here is an annotation of the same ConfigMap: what an administrator wrote is never removed. When an
administrator gave a domain back is another one: it has a whole pause since then.

Pauses of the storage are counted in memory: a new leader restarts them. Those of nodes follow from
their conditions, whose times are of other clocks: the last minute, at least, is counted here, so a
clock that is wrong does not end a pause, and a new leader adds at most a minute.

Nodes are read from the cache, which may be old: before something is changed because of them they
are listed once more, and only what still follows is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from zonewise.api.errors import ApiError, ConfigError, Conflict, ConnectionFailed, ProtocolError
from zonewise.api.meta import find_condition
from zonewise.api.objects.core import Node
from zonewise.api.reason import Reason
from zonewise.api.unstructured import Unstructured
from zonewise.api.values import times
from zonewise.csi.backends.contract import DomainHealth
from zonewise.csi.errors import CsiError
from zonewise.csi.takeover.controller import ConfigMap, TakeoverSettings
from zonewise.csi.takeover.status import (
    AUTOMATIC_ANNOTATION,
    CONFIG_KEY,
    CONFIG_MAP,
    GIVEN_BACK_ANNOTATION,
    format_given_back,
    parse_automatic_domains,
    parse_given_back,
)
from zonewise.csi.transport.calls import CallWorker
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.storage.configuration import edit_takeover, parse_configuration
from zonewise.storage.takeover.automatic import (
    CEPH,
    NODES,
    AutomaticDecision,
    AutomaticTakeover,
    decide_automatic,
)
from zonewise.storage.takeover.domain_states import (
    DomainTimes,
    NodeState,
    SourceStates,
    count_seen,
    count_times,
    judge_nodes,
    judge_storage,
    require_seen,
)
from zonewise.topology.nodes import is_node_ready

POLL_SECONDS = 10.0

_log = logger("csi")


class AutomaticLoop:
    """Runs endlessly; does nothing while it is off, or no source can report failures."""

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
        self._holds = settings.holds
        self._storage = storage
        self._worker = worker
        self._nodes = context.cache.store(Node)
        self._domain_times = DomainTimes()
        self._seen_nodes = DomainTimes()
        self._last_targets: frozenset[str] = frozenset()
        """What was taken over when we looked last: what is missing now was given back."""

    async def run(self) -> None:
        """Look again and again."""
        await self._context.cache.synced()
        while True:
            try:
                await self.check_once()
            except Conflict:
                pass  # a concurrent write: what failed is still known
            except (ApiError, ConfigError, ConnectionFailed, CsiError, ProtocolError) as error:
                # What is not known is not failed: the pauses go on only with answers.
                self._domain_times = DomainTimes()
                self._holds.replace((_tell_failure("AutomaticTakeoverStands", str(error)),))
            await asyncio.sleep(POLL_SECONDS)

    async def check_once(self) -> None:
        """Look once, and write what follows."""
        settings = self._source.current.automatic_takeover
        if settings is None or self._source.problem is not None:
            self._domain_times = self._seen_nodes = DomainTimes()
            self._holds.replace(())
            return
        sources, problems = await self._ask(settings)
        config_map = await self._context.client.get(ConfigMap, CONFIG_MAP, self._namespace)
        text = str(config_map.get("data", CONFIG_KEY, default=""))
        written = parse_configuration(text, self._labels)
        annotated = parse_automatic_domains(config_map.metadata.annotations)
        now, wall = asyncio.get_running_loop().time(), self._context.clock()
        given_back = parse_given_back(config_map.metadata.annotations)
        # What a person has given back is not ours any more, and has a whole pause before it is.
        automatic = annotated & {*written.takeover.targets}
        for name in (annotated | self._last_targets) - written.takeover.targets.keys():
            given_back.setdefault(name, wall)

        def decide() -> AutomaticDecision:
            return decide_automatic(
                settings,
                sources,
                written.takeover,
                automatic,
                {name: at + now - wall for name, at in given_back.items()},
                now,
            )

        decision = decide()
        if decision.changes and sources.get(NODES) is not None:
            listed = await self._context.client.list(Node)
            sources[NODES] = self._judge_nodes(settings, listed)
            decision = decide()
        self._holds.replace((*problems, *decision.holds))
        await self._write(config_map, text, annotated, automatic, decision, wall - now)
        given = {name for name, by in decision.changes.items() if by is None}
        self._last_targets = frozenset({*written.takeover.targets, *decision.changes} - given)

    async def _ask(
        self, settings: AutomaticTakeover
    ) -> tuple[dict[str, SourceStates | None], list[Reason]]:
        """What the sources say, and which of them cannot say anything."""
        storage, problems = self._storage, list[Reason]()
        sources: dict[str, SourceStates | None] = {}
        chosen = settings.sources or (CEPH if isinstance(storage, DomainHealth) else NODES,)
        if CEPH in chosen:
            if not isinstance(storage, DomainHealth):
                problems.append(
                    Reason(
                        code="NoStorageHealth",
                        message="automatic-takeover has the source ceph, and this driver's storage"
                        " cannot tell which domain has failed",
                        fix='Make its sources ["nodes"].',
                    )
                )
            else:
                try:
                    domains, failed = await self._worker(
                        lambda: storage.read_domain_health(self._labels)
                    )
                except CsiError as error:
                    self._domain_times = DomainTimes()
                    sources[CEPH] = None
                    problems.append(_tell_failure("SourceSilent", f"ceph cannot be asked: {error}"))
                else:
                    now = asyncio.get_running_loop().time()
                    self._domain_times = count_times(failed, domains, self._domain_times, now)
                    sources[CEPH] = judge_storage(self._domain_times, settings.pause)
        if NODES in chosen:
            sources[NODES] = self._judge_nodes(settings, self._nodes)
        return sources, problems

    def _judge_nodes(self, settings: AutomaticTakeover, nodes: Iterable[Node]) -> SourceStates:
        """What nodes say, in the time of the loop; those without a domain say nothing."""
        states = []
        for node in nodes:
            if not self._labels.missing_labels(node.metadata.labels):
                ready = find_condition(node.status.conditions, "Ready")
                created = node.metadata.creation_timestamp
                text = (ready and ready.last_transition_time) or created
                states.append(
                    NodeState(
                        self._labels.ordered(self._labels.segments_of_node(node.metadata.labels)),
                        is_node_ready(node),
                        times.parse(text).timestamp() if text else self._context.clock(),
                        times.parse(created).timestamp() if created else float("-inf"),
                    )
                )
        now = asyncio.get_running_loop().time()
        judged = judge_nodes(states, settings.pause_of_nodes, ahead=now - self._context.clock())
        self._seen_nodes = count_seen(judged, self._seen_nodes, now)
        return require_seen(judged, self._seen_nodes)

    async def _write(
        self,
        config_map: Unstructured,
        text: str,
        annotated: set[str],
        automatic: set[str],
        decision: AutomaticDecision,
        ahead: float,
    ) -> None:
        for name, target in decision.changes.items():
            automatic = automatic | {name} if target else automatic - {name}
        given_back = format_given_back(
            {name: at + ahead for name, at in decision.given_back.items()}
        )
        written = config_map.metadata.annotations.get(GIVEN_BACK_ANNOTATION)
        if automatic == annotated and given_back == written and not decision.changes:
            return
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": config_map.metadata.resource_version,
                "annotations": {
                    AUTOMATIC_ANNOTATION: ",".join(sorted(automatic)) or None,
                    GIVEN_BACK_ANNOTATION: given_back,
                },
            }
        }
        if decision.changes:
            body["data"] = {CONFIG_KEY: edit_takeover(text, decision.changes, self._labels)}
        await self._context.client.patch(ConfigMap, CONFIG_MAP, self._namespace, body)
        for reason in decision.reasons:
            _log.warning(str(reason), reason=reason.code)
            self._context.recorder.event(
                config_map, reason.code, "Takeover", str(reason), type="Warning"
            )


def _tell_failure(code: str, message: str) -> Reason:
    return Reason(code=code, message=f"nothing is decided automatically now: {message}")
