"""Field ownership is that of the real API server, over random writes to a few objects.

Several managers apply, patch, replace and reset the same object in random order. For each step we
calculate the result from the real server's last answer and compare it with its next one. Nothing
accumulates: a difference belongs to the step that shows it.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tests.kubernetes.configurations import SUBJECTS, Config, Subject, some, words
from tests.kubernetes.judgements import DEFINITIONS, definition_of
from tests.kubernetes.real_server import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    Answer,
    RealServer,
)
from tools.realkube import ControlPlane

from zonewise.api.errors import Conflict
from zonewise.embedded.machinery.crd.custom_resource import prepare
from zonewise.embedded.machinery.crd.structural import compile_schema
from zonewise.embedded.machinery.fields.apply import apply
from zonewise.embedded.machinery.fields.managed_fields import (
    Write,
    decode,
    encode,
    update_managed_fields,
)
from zonewise.embedded.machinery.fields.reset_fields import reset_fields_of
from zonewise.embedded.machinery.schema.definitions import OBJECT_META, Definitions
from zonewise.embedded.machinery.schema.schema import Schema

pytestmark = pytest.mark.real

STEPS = 160
MANAGERS = ("ann", "ben", "kubectl")
# What the server itself writes between the request's arrival and the answer.
ALLOCATED = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
OWN_METADATA = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")


class Life:
    """An object and the real server's last answer about it."""

    def __init__(self, server: RealServer, subject: Subject, namespace: str, seed: int) -> None:
        self.server = server
        self.subject = subject
        self.namespace = namespace
        self.name = f"life-{seed}"
        self.rng = random.Random(seed)
        self.live: Config | None = None
        definitions = Definitions()
        self.type: Schema = (
            definitions.schema(subject.definition)
            if subject.schema is None
            else compile_schema(subject.schema, metadata=definitions.schema(OBJECT_META))
        )
        self.agreed = 0
        self.conflicts = 0

    def write(self, manager: str, subresource: str = "") -> Write:
        return Write(
            schema=self.type,
            api_version=self.subject.api_version,
            manager=manager,
            time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            subresource=subresource,
            reset=reset_fields_of(
                self.subject.group,
                self.subject.plural,
                subresource,
                has_status=self.subject.status is not None,
                custom=self.subject.schema is not None,
            ),
            custom=self.subject.schema is not None,
        )

    async def ask(
        self, method: str, body: Any, subresource: str = "", *, kind: str = JSON, **query: str
    ) -> Answer:
        name = self.name if method != "POST" else ""
        path = self.subject.path(self.namespace, name, subresource)
        return await self.server.ask(method, path, body, kind=kind, **query)

    async def step(self) -> None:
        if self.live is None:
            await self.rng.choice([self.apply, self.create])()
            return
        steps = [self.apply] * 12 + [self.merge_patch] * 4 + [self.replace] * 3 + [self.reset]
        if self.subject.status is not None:
            steps += [self.apply_status] * 4 + [self.patch_status] * 2
        await self.rng.choice(steps)()

    async def create(self) -> None:
        body = self.subject.config(self.rng, self.name)
        answer = await self.ask("POST", body, fieldManager="ann")
        if answer.status == 201:
            self.judge(
                update_managed_fields(self.write("ann"), None, allocated(answer.body)), answer
            )

    async def apply(self) -> None:
        manager = self.rng.choice(MANAGERS)
        config = self.subject.config(self.rng, self.name)
        if self.live is not None and self.rng.random() < 0.2:
            config = without_spec(config, self.rng)
        await self._apply(manager, config)

    async def apply_status(self) -> None:
        config = self.subject.status_config(self.rng, self.name)
        await self._apply(self.rng.choice(MANAGERS), config, "status")

    async def _apply(self, manager: str, config: Config, subresource: str = "") -> None:
        force = self.rng.random() < 0.5
        write = self.write(manager, subresource)
        answer = await self.ask(
            "PATCH",
            config,
            subresource,
            kind=APPLY_PATCH,
            fieldManager=manager,
            force=str(force).lower(),
        )
        try:
            ours = apply(write, self.live, copy.deepcopy(config), force=force)
        except Conflict as conflict:
            causes = [(cause.field, cause.message) for cause in conflict.details.causes or ()]
            assert answer.status == 409, (config, answer)
            assert sorted(causes) == answer.messages
            assert set(conflict.status.message.split()) == set(answer.body["message"].split())
            self.conflicts += 1
            return
        if answer.status == 422:
            return
        assert answer.status in (200, 201), (config, answer)
        metadata = {**ours.object["metadata"], "namespace": self.namespace}
        judged = {**ours.object, "metadata": metadata}
        if subresource and self.live is not None:
            judged = {**self.live, "status": judged.get("status")}
        elif self.subject.status is not None and self.live is not None:
            judged["status"] = self.live.get("status")
        if self.subject.schema is not None:
            judged = prepare(self.type, judged).value
        assert unexplained(self.type, judged, answer.body) == []
        self.judge(ours.managers, answer)

    async def merge_patch(self) -> None:
        patch: Config = {"metadata": some(self.rng, {"labels": words(self.rng, "l")})}
        patch["metadata"]["annotations"] = {f"a{self.rng.randrange(4)}": None}
        if self.rng.random() < 0.7:
            config = self.subject.config(self.rng, self.name)
            patch |= {key: config[key] for key in ("spec", "data", "endpoints") if key in config}
        await self._update("PATCH", patch, kind=MERGE_PATCH)

    async def patch_status(self) -> None:
        patch = self.subject.status_config(self.rng, self.name)
        patch["spec"] = self.subject.config(self.rng, self.name)["spec"]
        await self._update("PATCH", patch, "status", kind=MERGE_PATCH)

    async def replace(self) -> None:
        assert self.live is not None
        body = self.subject.config(self.rng, self.name)
        body["metadata"] = {**self.live["metadata"], **body["metadata"]}
        if self.rng.random() < 0.5:
            body["metadata"].pop("managedFields", None)
        if self.subject.kind == "Service":
            body["spec"] |= {name: self.live["spec"][name] for name in ALLOCATED}
        await self._update("PUT", body)

    async def reset(self) -> None:
        operations = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
        answer = await self.ask("PATCH", operations, kind=JSON_PATCH)
        assert answer.status == 200
        self.judge([], answer)

    async def _update(
        self, method: str, body: Config, subresource: str = "", *, kind: str = JSON
    ) -> None:
        manager = self.rng.choice(MANAGERS)
        answer = await self.ask(method, body, subresource, kind=kind, fieldManager=manager)
        if answer.status == 200:
            ours = update_managed_fields(
                self.write(manager, subresource), self.live, answer.body_without_owners
            )
            self.judge(ours, answer)

    def judge(self, ours: list[Config], answer: Answer) -> None:
        real = answer.body["metadata"].get("managedFields", [])
        assert by_identity(ours) == by_identity(real)
        assert encode(decode(real)) == real
        self.agreed += 1
        self.live = answer.body


def by_identity(entries: list[Config]) -> list[Config]:
    """Entries in an order that does not depend on time; of a time only the presence counts."""
    timeless = [{**entry, "time": "time" in entry} for entry in entries]
    return sorted(timeless, key=partial(json.dumps, sort_keys=True))


def without_spec(config: Config, rng: random.Random) -> Config:
    """A configuration without most of its fields."""
    keep = {"apiVersion", "kind", "metadata", "addressType"}
    rest = {key: value for key, value in config.items() if key in keep}
    if rng.random() < 0.5:
        rest["metadata"] = {"name": config["metadata"]["name"]}
    return rest


def allocated(body: Config) -> Config:
    """A created object without what the server allocated after managedFields were computed."""
    body = copy.deepcopy(body)
    for field in ALLOCATED:
        if body["kind"] == "Service":
            body["spec"].pop(field, None)
    del body["metadata"]["managedFields"]
    return body


def unexplained(schema: Schema, ours: Any, real: Any, at: str = "") -> list[str]:
    """Paths where the real result is neither ours nor ours with defaults."""
    if isinstance(ours, dict) and isinstance(real, dict):
        return [
            fault
            for name in {*ours, *real}
            if not (at == ".metadata" and name in OWN_METADATA)
            for fault in unexplained(schema, ours.get(name), real.get(name), f"{at}.{name}")
        ]
    if isinstance(ours, list) and isinstance(real, list) and len(ours) == len(real):
        return [
            fault
            for n, (mine, theirs) in enumerate(zip(ours, real, strict=True))
            for fault in unexplained(schema, mine, theirs, f"{at}[{n}]")
        ]
    if ours == real or (not ours and is_blank(real)):
        return []
    if (ours is None or real is None) and at.rpartition(".")[2] in DEFAULTED:
        return []
    return [f"{at}: {ours!r} is not {real!r}"]


def is_blank(value: Any) -> bool:
    """Whether a value is nothing but empty objects."""
    return not value or (isinstance(value, dict) and all(map(is_blank, value.values())))


DEFAULTED = {
    "externalTrafficPolicy",
    "clusterIP",
    "clusterIPs",
    "dnsPolicy",
    "failureThreshold",
    "imagePullPolicy",
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "maxSurge",
    "maxUnavailable",
    "progressDeadlineSeconds",
    "protocol",
    "replicas",
    "restartPolicy",
    "revisionHistoryLimit",
    "rollingUpdate",
    "schedulerName",
    "sessionAffinity",
    "sessionAffinityConfig",
    "strategy",
    "targetPort",
    "terminationGracePeriodSeconds",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "type",
    "conditions",
    "name",
    "port",
}


async def define(server: RealServer, subject: Subject) -> None:
    """Make the kind of a custom resource and wait until it is served."""
    definition = definition_of(subject.schema or {}, subject.group)
    definition["spec"]["scope"] = "Namespaced"
    definition["spec"]["versions"][0]["subresources"] = {"status": {}}
    assert (await server.ask("POST", DEFINITIONS, definition)).status == 201
    for _ in range(200):
        if (await server.ask("GET", subject.path("default"))).status == 200:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the custom resource is not served")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.kind)
async def test_random_lives_have_the_owners_the_real_server_names(
    realapi: ControlPlane, subject: Subject
) -> None:
    """After any sequence of writes, object and owners are those the real server has."""
    server = RealServer(realapi)
    try:
        namespace = f"lives-{subject.plural}"
        answer = await server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        assert answer.status == 201
        if subject.schema is not None:
            await define(server, subject)
        agreed = conflicts = 0
        for seed in range(4):
            life = Life(server, subject, namespace, seed)
            for _ in range(STEPS // 4):
                await life.step()
            agreed += life.agreed
            conflicts += life.conflicts
        assert agreed > STEPS // 2, "most steps must be valid, or nothing is judged"
        assert conflicts > 3
    finally:
        await server.close()
