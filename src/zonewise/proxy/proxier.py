"""The proxy's loop: what changes in the cluster is changed in the kernel.

*Triggered* by Services, EndpointSlices, the own Node, ServiceCIDRs and, if a Service needs them, by
PodLocators, labels and addresses of other nodes. A change marks Services; the loop takes all that
are marked, recomputes their routes and writes one transaction. Changes meanwhile are taken together
next time, so a burst costs few transactions and a single change is not delayed by any period.

*In turns*: Services with more than ``LARGE`` endpoints are written one by one, each after whatever
else is marked by then. So others wait for one of them at most, however many there are.

*First write*: only after every list is complete. Then, as after a failure, once an hour, and when
another program changed our tables, the kernel is read and everything that differs is written. A
failure is retried with growing pauses; what was marked stays marked. What only one Service is
refused for concerns that Service (``writer``), and networks that are refused concern no Service.

*Topology keys* need labels of nodes that slices do not state, *external IPs* the addresses of nodes
(``nodes``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from zonewise.api.errors import ConfigError, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node, Service
from zonewise.api.objects.discovery import (
    HEADLESS_LABEL,
    TRIGGER_ANNOTATION,
    LeanEndpointSlice,
    service_name_of,
)
from zonewise.proxy.netlink.notices import Touched
from zonewise.proxy.nodes import FollowedAddresses, UnstatedLabels
from zonewise.proxy.objects import ServiceCIDR
from zonewise.proxy.observer import Change, Observer, Sync
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.tables.cidrs import loops_back
from zonewise.proxy.tables.kernel import Kernel, KernelRefused, Networks
from zonewise.proxy.tables.layout import NOTHING, Layout, lay_out
from zonewise.proxy.tables.writer import Retry, TableWriter, WriteResult
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.pace import Pace
from zonewise.runtime.process.logs import logger
from zonewise.runtime.process.memory import freeze_heap, paused
from zonewise.traffic.routes.addresses import parse_address
from zonewise.traffic.routes.choice import ClientLocation, ServicePolicy
from zonewise.traffic.routes.claims import Claim, Frontend, FrontendClaims
from zonewise.traffic.routes.service import (
    PROXY_NAME_LABEL,
    compute_service_routes,
    frontend_claims,
    is_routed,
)
from zonewise.traffic.routes.table import ServiceRoutes
from zonewise.traffic.slices.topology import unstated_labels_of

RESYNC = 3600.0
LARGE = 1000
"""A Service with more endpoints than this is written alone, after all that are smaller."""
_AT_ONCE = 100
"""Services laid out between two looks at whatever else the program has to do."""

_log = logger("proxy")


def _owners(piece: LeanEndpointSlice) -> tuple[Key, ...]:
    """The Service of a slice, as an index has it."""
    name = service_name_of(piece)
    return ((piece.metadata.namespace, name),) if name else ()


class Proxier:
    """Follows a cluster for one node."""

    def __init__(
        self,
        cache: Cache,
        kernel: Kernel,
        settings: ProxySettings,
        *,
        service_cidrs: Store[ServiceCIDR] | None = None,
    ) -> None:
        name = settings.routing.proxy_name
        chosen = f"{PROXY_NAME_LABEL}={name}" if name else f"!{PROXY_NAME_LABEL}"
        self._cache = cache
        self._kernel = kernel
        self._settings = settings
        self.observers: tuple[Observer, ...] = ()
        self.waiting_since: float | None = None
        """When the oldest change that is not written yet arrived."""
        self.services = cache.store(Service, label_selector=chosen)
        self.slices = cache.store(
            LeanEndpointSlice, label_selector=f"!{HEADLESS_LABEL}", indexes={"service": _owners}
        )
        self.nodes = cache.store(Node, field_selector=f"metadata.name={settings.node_name}")
        self._cidrs = service_cidrs
        self._node = Node()
        self.location = ClientLocation(node=settings.node_name)
        self._claims = FrontendClaims()
        self._writer = TableWriter(kernel, not_removed=self._not_removed)
        self._dirty: dict[Key, None] = {}
        """What is marked, the longest first."""
        self._refused: dict[Key, Retry] = {}
        self._large_is_next = False
        self._full = True
        self._rules_touched = False
        self._surroundings_changed = True
        self._networks_refused = Retry()
        self._wake = asyncio.Event()
        self._pace = Pace(base=0.5)
        self._wrote_at = 0.0
        self._labels = UnstatedLabels(cache, relabelled=self.mark)
        self._addresses = FollowedAddresses(cache, readdressed=self._readdressed)
        self._keyed: dict[Key, tuple[str, ...]] = {}
        """The topology keys of Services that have some."""
        self._unexamined: set[Key] = set()
        """Services with keys that have to be looked at for labels that their slices leave out."""
        self._external: dict[Key, frozenset[str]] = {}
        """The external IPs of Services that have some, canonical."""
        self._triggers: list[str] = []
        self._listening: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        try:
            await self._follow()
        finally:
            for end in self._listening:
                end()
            await self._addresses.close()

    async def _follow(self) -> None:
        await self._cache.synced()
        if not len(self.nodes):
            raise ConfigError(
                f"the cluster has no Node {self._settings.node_name!r}; give --node-name the name "
                "of this machine's Node"
            )
        self._listening.append(self.nodes.on_change(self._node_changed))
        self._listening.append(self.services.on_change(self._service_changed))
        self._listening.append(self.slices.on_change(self._slice_changed))
        if self._cidrs is not None:
            self._listening.append(self._cidrs.on_change(self._cidrs_changed))
        await self._addresses.listed()
        self._examine()
        labels = asyncio.create_task(self._labels.run())
        try:
            await self._labels.settle()
            await self._keep_written()
        finally:
            labels.cancel()
            with suppress(asyncio.CancelledError):
                await labels

    async def _keep_written(self) -> None:
        loop = asyncio.get_running_loop()
        with paused():
            await self._write()
        freeze_heap()
        notices = self._kernel.notices()
        loop.add_reader(notices.socket.fileno(), lambda: self._drifted(notices.touched()))
        resync = loop.time() + RESYNC
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min((resync, *self._due()))):
                        await self._wake.wait()
                self._wake.clear()
                if loop.time() >= resync:
                    self._full = True
                    resync = loop.time() + RESYNC
                await self._write()
        finally:
            loop.remove_reader(notices.socket.fileno())
            notices.close()

    def mark(self, keys: Iterable[Key]) -> None:
        """Have these Services written again."""
        marked = set(keys)
        if not marked:
            return
        self._dirty |= dict.fromkeys(sorted(marked))
        if self.waiting_since is None:
            self.waiting_since = asyncio.get_running_loop().time()
        self._wake.set()

    def _came(self, change: Change) -> None:
        if self._wrote_at:
            for observer in self.observers:
                observer.object_changed(change)

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        assert service is not None
        keys = () if new is None else self._keys_of(new)
        if keys:
            self._keyed[service.key] = keys
            self._unexamined.add(service.key)
        elif self._keyed.pop(service.key, None) is not None:
            self._labels.need(service.key, {})
        if new is not None and new.spec.external_ips:
            parsed = map(parse_address, new.spec.external_ips)
            self._external[service.key] = frozenset(
                address.text for address in parsed if address is not None
            )
            self._addresses.need()
        else:
            self._external.pop(service.key, None)
        self.mark((service.key,))
        self._came("service")

    def _slice_changed(self, old: LeanEndpointSlice | None, new: LeanEndpointSlice | None) -> None:
        for piece in (old, new):
            if piece is not None:
                owners = _owners(piece)
                self._unexamined.update(owners)
                self.mark(owners)
        self._came("endpoint")
        trigger = new.metadata.annotations.get(TRIGGER_ANNOTATION) if new is not None else None
        if trigger and (old is None or old.metadata.annotations.get(TRIGGER_ANNOTATION) != trigger):
            self._triggers.append(trigger)

    def _node_changed(self, _old: Node | None, new: Node | None) -> None:
        """Update this node's location; a deleted Node leaves the last one in use.

        Zone and addresses matter to every Service, other labels only to those with keys.
        """
        if new is None:
            return
        location = ClientLocation.of(new)
        if new.spec != self._node.spec or location.addresses != self.location.addresses:
            self._surroundings_changed = True
            self._wake.set()
        if (location.zone, location.addresses) != (self.location.zone, self.location.addresses):
            if self._wrote_at and location.zone != self.location.zone:
                _log.info(
                    "this node is in another zone", zone=location.zone, before=self.location.zone
                )
            self.mark(service.key for service in self.services)
        elif location.labels != self.location.labels:
            self.mark(self._keyed)
        self._node, self.location = new, location

    def _cidrs_changed(self, _old: ServiceCIDR | None, new: ServiceCIDR | None) -> None:
        if new is not None and (ignored := list(filter(loops_back, new.spec.cidrs))):
            _log.warning(
                "networks of Services are ignored: they have loopback addresses",
                service_cidr=new.metadata.name,
                networks=",".join(ignored)[:200],
            )
        self._surroundings_changed = True
        self._wake.set()

    def _readdressed(self, addresses: Collection[str] | None) -> None:
        self.mark(
            key
            for key, named in self._external.items()
            if addresses is None or not named.isdisjoint(addresses)
        )

    def _drifted(self, touched: Touched) -> None:
        if touched is not Touched.NOTHING:
            self._full = True
            self._rules_touched = self._rules_touched or touched is Touched.RULES
            self._wake.set()

    async def _write(self) -> None:
        """Write what is marked, until that succeeds."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._sync()
            except (ZonewiseError, OSError) as error:
                if isinstance(error, ConfigError):
                    raise
                self._full = True
                _log.warning("packet rules could not be written; trying again", error=str(error))
                for observer in self.observers:
                    observer.failed(error)
                await self._pace.rest()
            else:
                self._wrote_at = loop.time()
                self._pace = Pace(base=0.5)
                return

    def _keys_of(self, service: Service) -> tuple[str, ...]:
        routing = self._settings.routing
        return ServicePolicy.of(service, routing.gates).keys if is_routed(service, routing) else ()

    def _examine(self) -> None:
        """Find out which labels are needed that slices do not state."""
        for key in self._unexamined & self._keyed.keys():
            slices = self.slices.by("service", key)
            self._labels.need(key, unstated_labels_of(slices, self._keyed[key]))
        self._unexamined.clear()

    async def _sync(self) -> None:
        self._examine()
        now = asyncio.get_running_loop().time()
        turn = self._choose_next(now)
        full, touched, incomplete = self._full, self._rules_touched, False
        networks_due = self._surroundings_changed and self._networks_refused.due <= now
        if not (full or turn or networks_due):
            return
        for key in turn:
            del self._dirty[key]
        self._full = self._rules_touched = False
        try:
            networks = self._networks()
            if full:
                actual = self._kernel.read(rules_touched=touched)
                await self._kernel.prepare()
                layouts = await self._lay_out(turn, actual)
                # What an earlier process wrote may belong to Services that wait: it stays for now.
                incomplete = not self._waiting() <= {*self._writer.desired.keys()}
                written = await self._writer.compare(
                    layouts, actual, networks, keep_others=incomplete
                )
                self._full = self._full or incomplete
            else:
                layouts = await self._lay_out(turn, self._writer.desired.elements)
                written = await self._writer.write(layouts, networks)
            if full or networks_due:
                await self._write_networks(networks, now)
        except BaseException:
            self._dirty = dict.fromkeys(turn) | self._dirty
            self._full, self._rules_touched = full, touched
            raise
        self._note_refused(layouts, written, now)
        if full and (written.removed or written.put) and self._wrote_at and not turn:
            _log.warning(
                "packet rules differed from what was written and were corrected",
                elements=written.removed + written.put,
            )
        if self._dirty.keys() <= self._refused.keys() | self._waiting():
            self.waiting_since = None
        if self._ready(now):
            self._wake.set()
        self._observed(written, now, services=len(turn), full=full)
        if full and not incomplete:
            self._writer.sweep()

    def _ready(self, now: float) -> list[Key]:
        """What is marked and may be written."""
        waiting = self._waiting()
        return [
            key
            for key in self._dirty
            if key not in waiting and (key not in self._refused or self._refused[key].due <= now)
        ]

    def _choose_next(self, now: float) -> list[Key]:
        """What to write next: everything that is not large, and then one that is."""
        ready = self._ready(now)
        large = [] if self._full else [key for key in ready if self._is_large(key)]
        if not large:
            return ready
        self._large_is_next = not self._large_is_next or len(large) == len(ready)
        return large[:1] if self._large_is_next else [key for key in ready if key not in large]

    def _is_large(self, key: Key) -> bool:
        pieces = self.slices.by("service", key)
        return sum(len(piece.endpoints or ()) for piece in pieces) > LARGE

    def _due(self) -> Iterator[float]:
        """When something that was refused is to be tried again."""
        yield from (retry.due for key, retry in self._refused.items() if key in self._dirty)
        if self._surroundings_changed and self._networks_refused.due:
            yield self._networks_refused.due

    def _note_refused(self, layouts: Collection[Key], written: WriteResult, now: float) -> None:
        """What could not be written stays marked."""
        for key in layouts:
            error = written.refused.get(key)
            if error is None:
                self._refused.pop(key, None)
                continue
            if key not in self._refused:
                _log.warning(
                    "the kernel refused the rules of a Service; it keeps those it had",
                    service="/".join(key),
                    error=str(error),
                )
                for observer in self.observers:
                    observer.refused(key, error)
            self._refused.setdefault(key, Retry()).failed(now)
        self._dirty |= dict.fromkeys((*written.refused, *written.unfinished))

    async def _write_networks(self, networks: Networks, now: float) -> None:
        """Networks of pods, ClusterIPs and node ports; Services do not wait for them."""
        try:
            await self._kernel.write_networks(networks)
        except KernelRefused as error:
            self._networks_refused.failed(now)
            self._surroundings_changed = True
            _log.warning("networks could not be written; trying again", error=str(error))
        else:
            self._networks_refused = Retry()
            self._surroundings_changed = False

    def _observed(self, written: WriteResult, began: float, *, services: int, full: bool) -> None:
        first = not self._wrote_at
        triggers, self._triggers = self._triggers, []
        sync = Sync(
            first=first,
            full=full,
            services=services,
            removed=written.removed,
            put=written.put,
            seconds=asyncio.get_running_loop().time() - began,
            triggers=() if first else tuple(triggers),
        )
        for observer in self.observers:
            observer.synced(sync)

    def _not_removed(self, error: Exception) -> None:
        """Unused chains stay until the next comparison."""
        _log.info("unused chains could not be removed", error=str(error))
        for observer in self.observers:
            observer.not_swept(error)

    def _waiting(self) -> set[Key]:
        """The Services that cannot be decided yet."""
        waiting = self._labels.waiting()
        if self._addresses.missing:
            waiting |= self._external.keys()
        return waiting

    def routes(self) -> Iterator[tuple[Key, ServiceRoutes]]:
        """The routes of every Service as they are now."""
        for key in sorted(self.services.keys()):
            routes = self._routes(key)
            if routes is not None:
                yield key, routes

    async def _lay_out(
        self, dirty: Collection[Key], present: Mapping[bytes, bytes]
    ) -> dict[Key, Layout]:
        """New layouts of these Services, and of those that gain or lose a way by that.

        All claims come first: what is laid out, and passed to observers, is what a Service has.
        """
        woken = set(dirty)
        for key in dirty:
            service = self.services.get(key)
            claims = {} if service is None else self._ways(service)
            woken |= self._claims.claim(key, claims)
        layouts: dict[Key, Layout] = {}
        for at, key in enumerate(sorted(woken), start=1):
            routes = self._routes(key)
            for observer in self.observers:
                observer.routed(key, routes)
            node = self.location.node
            layouts[key] = NOTHING if routes is None else lay_out(routes, node, present)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return layouts

    def _routes(self, key: Key) -> ServiceRoutes | None:
        service = self.services.get(key)
        if service is None:
            return None
        return compute_service_routes(
            service,
            self.slices.by("service", key),
            self.location,
            self._labels.of_nodes,
            self._settings.routing,
            self._claims,
            self._addresses.addresses,
            self._labels.located,
        )

    def _ways(self, service: Service) -> Mapping[Frontend, Claim]:
        return frontend_claims(service, self._settings.routing, self._addresses.addresses)

    def _networks(self) -> Networks:
        cidrs = () if self._cidrs is None else tuple(self._cidrs)
        texts = tuple(text for service_cidr in cidrs for text in service_cidr.spec.cidrs)
        return self._settings.networks(self._node, self.location.addresses, texts)
