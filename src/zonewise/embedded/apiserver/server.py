"""The embedded API server, composed of its parts.

``ApiServer`` is a cluster's API in this process: ``handle`` answers calls, ``start`` also serves
them over HTTPS. It owns its data folder, creates what a new cluster has (namespaces, roles,
priority classes), and runs the controllers that an API server needs: garbage collection, namespace
lifecycle, custom resource definitions.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from zonewise.api.errors import ApiError
from zonewise.api.gates import FeatureGates
from zonewise.api.values import times
from zonewise.embedded.apiserver.admission.limit_ranges import LimitRanges
from zonewise.embedded.apiserver.admission.plugins import Plugins, order_admission
from zonewise.embedded.apiserver.admission.quotas import Quotas
from zonewise.embedded.apiserver.admission.webhooks import Webhooks
from zonewise.embedded.apiserver.auth.authentication import AUTHENTICATED, Authenticator
from zonewise.embedded.apiserver.auth.authorization import MASTERS, Authorizer
from zonewise.embedded.apiserver.auth.identity import Identity
from zonewise.embedded.apiserver.auth.tokens import Tokens
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.codec.output import Form, Forms
from zonewise.embedded.apiserver.codec.printer_columns import custom_printer
from zonewise.embedded.apiserver.codec.table import Table, printer_of
from zonewise.embedded.apiserver.controllers.builtin import start_controllers
from zonewise.embedded.apiserver.controllers.custom_resources import CustomResources
from zonewise.embedded.apiserver.controllers.internal_writes import InternalWrites
from zonewise.embedded.apiserver.controllers.kubernetes_service import publish
from zonewise.embedded.apiserver.controllers.quota_status import QuotaStatus
from zonewise.embedded.apiserver.discovery.nonresource import NonResource
from zonewise.embedded.apiserver.handlers.component_statuses import (
    COMPONENT_STATUSES,
    component_statuses,
)
from zonewise.embedded.apiserver.handlers.deleting import Deleter
from zonewise.embedded.apiserver.handlers.eviction import Evictions
from zonewise.embedded.apiserver.handlers.patching import Patcher
from zonewise.embedded.apiserver.handlers.reading import Reader
from zonewise.embedded.apiserver.handlers.reviews import Reviews
from zonewise.embedded.apiserver.handlers.router import RequestCountKey, Router, Verb
from zonewise.embedded.apiserver.handlers.subresources import Subresources
from zonewise.embedded.apiserver.handlers.verbs import Verbs, answer_not_implemented
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.http.server import HttpServer, RequestLimits
from zonewise.embedded.apiserver.registry import Conversion, Registry, ServedKind
from zonewise.embedded.apiserver.request.call import Answer, Call, User
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.apiserver.strategy.catalog import Catalog
from zonewise.embedded.apiserver.strategy.network.allocation import Allocation
from zonewise.embedded.apiserver.webhooks.caller import ServiceResolver, WebhookCaller
from zonewise.embedded.machinery.decoding.conversions import STORAGE_CONVERSIONS
from zonewise.embedded.machinery.schema.definitions import read_table
from zonewise.embedded.machinery.schema.kinds import Kind, served_kinds
from zonewise.embedded.machinery.schema.schema import Schema
from zonewise.runtime.client.client import Client

Obj = dict[str, Any]

NOT_IMPLEMENTED: Mapping[str, Verb] = dict.fromkeys(
    ("create", "delete", "get", "patch", "update"), answer_not_implemented
)
OWNER = User("zonewise-owner", (MASTERS, AUTHENTICATED))
SYSTEM = User("system:apiserver", (MASTERS, AUTHENTICATED))
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")

DUAL_STACK = ("10.96.0.0/16", "fd00:10:96::/112")
"""Both families: with the kubelets' own networks, every type of Service works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a server."""

    gates: FeatureGates = field(default_factory=FeatureGates)
    service_networks: tuple[str, ...] = ("10.96.0.0/16",)
    limits: RequestLimits = field(default_factory=RequestLimits)


class ApiServer:
    """A Kubernetes API in this process."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        settings: ServerSettings | None = None,
        clock: Callable[[], float],
        rng: random.Random,
        inline: bool = False,
    ) -> None:
        settings = settings or ServerSettings()
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self.host = host
        self.state = State.open(folder, clock=clock, inline=inline)
        self.identity = Identity(folder, host=host, now=self._current_time())
        self._allocation = Allocation(settings.service_networks, rng)
        self.authorizer = Authorizer()
        catalog = Catalog(allocation=self._allocation, authorizer=self.authorizer)
        self.registry = Registry(_builtin_kinds(catalog))
        tokens = Tokens(self.identity.token_key, clock=clock, new_id=self._new_uid)
        self.authenticator = Authenticator(
            tokens=tokens,
            owners={self.identity.owner_token: OWNER},
            get_object=self._get_object,
            clock=clock,
        )
        self._caller = WebhookCaller(
            ServiceResolver(self._get_object, self._list_slices, rng.choice)
        )
        self.webhooks = Webhooks(
            state=self.state, registry=self.registry, caller=self._caller, new_uid=self._new_uid
        )
        self._quotas = Quotas(state=self.state, registry=self.registry, clock=clock)
        self.admission = admission = order_admission(
            Plugins(self._get_object, self._list_objects, rng.choice),
            LimitRanges(self._list_objects),
            self.webhooks,
            self._quotas,
        )
        self.writer = Writer(
            registry=self.registry,
            state=self.state,
            admission=admission,
            gates=settings.gates,
            now=self._now,
            new_uid=self._new_uid,
            choose=rng.choice,
        )
        self.deleter = Deleter(state=self.state, admission=admission, writer=self.writer)
        self.running = False
        """Whether a scheduler and controllers run with this server."""
        reader = Reader(
            state=self.state,
            forms=Forms(self._table),
            rng=rng,
            computed={
                COMPONENT_STATUSES: lambda: component_statuses(
                    failure=self.state.failure, running=self.running
                )
            },
        )
        patcher = Patcher(self.writer)
        verbs = Verbs(reader=reader, writer=self.writer, patcher=patcher, deleter=self.deleter)
        subresources = Subresources(
            state=self.state,
            registry=self.registry,
            reader=reader,
            writer=self.writer,
            patcher=patcher,
            tokens=tokens,
        )
        self.evictions = evictions = Evictions(
            state=self.state,
            registry=self.registry,
            writer=self.writer,
            deleter=self.deleter,
            system=SYSTEM,
        )
        requests: Counter[RequestCountKey] = Counter()
        self.router = Router(
            registry=self.registry,
            authorizer=self.authorizer,
            verbs=verbs.by_verb,
            subresources={
                ("*", "status"): verbs.status,
                ("*", "scale"): subresources.scale,
                ("/namespaces", "finalize"): {"update": subresources.finalize},
                ("/pods", "attach"): NOT_IMPLEMENTED,
                ("/pods", "binding"): {"create": subresources.bind},
                ("/pods", "ephemeralcontainers"): subresources.object_verbs("ephemeralcontainers"),
                ("/pods", "eviction"): {"create": evictions.evict},
                ("/pods", "exec"): NOT_IMPLEMENTED,
                ("/pods", "log"): {"get": subresources.log},
                ("/pods", "portforward"): NOT_IMPLEMENTED,
                ("/pods", "proxy"): NOT_IMPLEMENTED,
                ("/pods", "resize"): subresources.object_verbs("resize"),
                ("/services", "proxy"): NOT_IMPLEMENTED,
                ("/nodes", "proxy"): NOT_IMPLEMENTED,
                ("/serviceaccounts", "token"): {"create": subresources.token},
                (
                    "certificates.k8s.io/certificatesigningrequests",
                    "approval",
                ): subresources.object_verbs("approval"),
            },
            unstored={
                "/bindings": subresources.bind_by_name,
                **Reviews(
                    authorizer=self.authorizer, authenticator=self.authenticator, writer=self.writer
                ).verbs,
            },
            pages=NonResource(
                registry=self.registry,
                state=self.state,
                tokens=tokens,
                address="",
                requests=requests,
            ).answer,
            requests=requests,
        )
        self._http: HttpServer | None = None
        self.quota_status = QuotaStatus(
            self._quotas, registry=self.registry, writer=self.writer, user=SYSTEM
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._second = (0, "")
        self._object_lists: dict[str, list[Obj]] = {}
        for kind in ROLE_KINDS:
            for entry in self.state.list(kind).entries:
                self._update_permissions(kind, entry.namespace, entry.name, entry.raw)
        self._allocating = catalog.allocating()
        for kind, rules in self._allocating.items():
            for entry in self.state.list(kind).entries:
                obj = bodies.decode_stored(entry.raw)
                rules.settled(entry.namespace, entry.name, obj)
        self.state.listen(self._observe)

    async def handle(self, call: Call) -> Answer:
        """Answer one call."""
        return await self.router.handle(call)

    async def boot(self) -> None:
        """Create what a new cluster has."""
        namespaces: list[Obj] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in NAMESPACES
        ]
        bootstrap_objects: list[Obj] = msgspec.json.decode(read_table("bootstrap.json"))["objects"]
        for batch in (namespaces, bootstrap_objects):  # written concurrently, they share a commit
            await asyncio.gather(*map(self._ensure, batch))
        await self._ensure(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "ServiceCIDR",
                "metadata": {"name": "kubernetes"},
                "spec": {"cidrs": list(self._settings.service_networks)},
            }
        )
        await self._ensure(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {
                    "name": "kubernetes",
                    "namespace": "default",
                    "labels": {"component": "apiserver", "provider": "kubernetes"},
                },
                "spec": {
                    "clusterIP": self._allocation.api_server_address(),
                    "ports": [{"name": "https", "port": 443, "targetPort": 6443}],
                },
            }
        )

    async def start(self, port: int = 0) -> str:
        """Boot, serve over HTTPS and write the kubeconfig; returns the address.

        Raises ``OSError`` if the port is taken; another may be tried.
        """
        if not self._tasks:
            await self.start_local()
        self._http = HttpServer(
            self.handle, self.authenticator.authenticate, self.identity.tls(), self._settings.limits
        )
        bound = await self._http.start(self.host, port)
        host = f"[{self.host}]" if ":" in self.host else self.host
        address = f"https://{host}:{bound}"
        await publish(self.connect("apiserver"), self.host, bound)
        self.identity.write_kubeconfig(address)
        return address

    async def start_local(self) -> None:
        """Boot and start the controllers, for callers in this process only."""
        await self.boot()
        custom_resources = CustomResources(
            state=self.state,
            registry=self.registry,
            writer=self.writer,
            deleter=self.deleter,
            metadata=self._object_meta,
            user=SYSTEM,
            caller=self._caller,
            new_uid=self._new_uid,
        )
        writes = InternalWrites(
            state=self.state,
            registry=self.registry,
            writer=self.writer,
            deleter=self.deleter,
            user=SYSTEM,
        )
        self._tasks = start_controllers(
            writes, authority=self.identity.authority_pem, clock=self._clock
        )
        self._tasks.append(asyncio.create_task(custom_resources.run(), name="definitions"))
        self._tasks.append(self._quotas.start())

    def connect(self, name: str) -> Client:
        """A client in this process for the component with this name."""
        user = User(f"system:{name}", (MASTERS, AUTHENTICATED))
        return Client(LocalTransport(self.handle, user), field_manager=name)

    async def close(self) -> None:
        """Stop serving; everything acknowledged is stored."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http:
            await self._http.close()
        await self.webhooks.close()
        await self.state.close()

    async def _ensure(self, obj: Obj) -> None:
        served = self.registry.by_kind(obj["apiVersion"], obj["kind"])
        if served is None:
            return
        meta = obj["metadata"]
        namespace = meta.get("namespace", "")
        if self.state.latest(served.storage, namespace, meta["name"]) is not None:
            return
        resource = served.kind.resource
        call = Call(method="POST", path="", user=SYSTEM, headers={"user-agent": "kube-apiserver/1"})
        target = Target(resource.group, resource.version, resource.plural, namespace)
        try:
            await self.writer.create(call, served, target, obj)
        except ApiError as error:
            raise AssertionError(f"boot: {obj['kind']} {meta['name']}: {error}") from error

    def _observe(self, kind: str, event: StoreEvent) -> None:
        entry = event.entry
        self._object_lists.pop(kind, None)
        if kind in ROLE_KINDS:
            raw = None if event.type == "DELETED" else entry.raw
            self._update_permissions(kind, entry.namespace, entry.name, raw)
        elif rules := self._allocating.get(kind):
            obj = None if event.type == "DELETED" else bodies.decode_stored(entry.raw)
            rules.settled(entry.namespace, entry.name, obj)

    def _update_permissions(self, kind: str, namespace: str, name: str, raw: bytes | None) -> None:
        obj = bodies.decode_stored(raw) if raw is not None else None
        if kind.endswith("roles"):
            self.authorizer.put_role(namespace, name, obj)
        else:
            self.authorizer.put_binding(namespace, name, obj)

    def _object_meta(self) -> Schema:
        served = self.registry.by_path("", "v1", "namespaces")
        assert served is not None
        return served.kind.schema.fields["metadata"]

    def _table(self, served: ServedKind, include: str, version: str) -> Form:
        return Table(
            served,
            include,
            version,
            served.kind.columns,
            custom_printer(served.kind.columns) if served.custom else printer_of(served.kind),
            self._now,
        )

    def _get_object(self, storage: str, namespace: str, name: str) -> Obj | None:
        entry = self.state.latest(storage, namespace, name)
        return bodies.decode_stored(entry.raw) if entry else None

    def _list_objects(self, storage: str) -> Iterable[Obj]:
        """All objects of one of the few kinds that defaults come from; read-only."""
        objects = self._object_lists.get(storage)
        if objects is None:
            entries = self.state.list(storage).entries
            objects = self._object_lists[storage] = [
                bodies.decode_stored(entry.raw) for entry in entries
            ]
        return objects

    def _list_slices(self, namespace: str, service_name: str) -> Iterable[Obj]:
        return [
            bodies.decode_stored(entry.raw)
            for entry in self.state.list("discovery.k8s.io/endpointslices", namespace).entries
            if entry.labels.get("kubernetes.io/service-name") == service_name
        ]

    def _current_time(self) -> dt.datetime:
        return times.from_epoch(self._clock())

    def _now(self) -> str:
        second = int(self._clock())
        if second != self._second[0]:
            self._second = (second, times.format_time(times.from_epoch(second)))
        return self._second[1]

    def _new_uid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))


DEPRECATED = {
    ("", "v1", "componentstatuses"): "v1 ComponentStatus is deprecated in v1.19+",
    ("", "v1", "endpoints"): (
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    ),
}
ROLE_KINDS = tuple(
    f"rbac.authorization.k8s.io/{plural}"
    for plural in ("clusterroles", "roles", "clusterrolebindings", "rolebindings")
)


def _builtin_kinds(catalog: Catalog) -> list[ServedKind]:
    kinds = served_kinds()
    stored = {
        kind.storage: kind.resource.api_version
        for kind in reversed(kinds)
        if _path_of(kind) not in STORAGE_CONVERSIONS
    }
    return [
        ServedKind(
            kind=kind,
            rules=catalog.of(f"{kind.resource.group}/{kind.resource.plural}"),
            conversion=_storage_conversion(kind, stored[kind.storage]),
            deprecation=DEPRECATED.get(_path_of(kind), ""),
        )
        for kind in kinds
    ]


def _storage_conversion(kind: Kind, stored_as: str) -> Conversion | None:
    conversion = STORAGE_CONVERSIONS.get(_path_of(kind))
    if conversion is None:
        return None
    return Conversion(
        stored_as=stored_as, to_storage=conversion.to_storage, from_storage=conversion.from_storage
    )


def _path_of(kind: Kind) -> tuple[str, str, str]:
    return kind.resource.group, kind.resource.version, kind.resource.plural
