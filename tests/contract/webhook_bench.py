"""A bench for admission webhooks: one HTTPS server that plays all of them, and a notebook.

A ``Bench`` stands before one API server, embedded or real, and owns one namespace in it. Situations
register webhooks, write objects and leave in the notebook what the API server answered and what
the webhooks were asked, with everything that may differ from run to run replaced by a word. Two
notebooks of one situation can then be compared line by line.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from tests.runtime.loopback import Reply, Seen, Web

from zonewise.runtime.client.transport import HttpsTransport, Request
from zonewise.runtime.config.cluster import load_config

Obj = dict[str, Any]
Handler = Callable[[Obj], Obj | Reply]
"""From a review's request to a review's response, but for its uid; or to any reply at all."""

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
PROBE = "probe.zonewise.io"
CA = trustme.CA()
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
OWN = {"uid", "resourceVersion", "creationTimestamp", "managedFields"}


def allow(**more: Any) -> Handler:
    """A webhook that allows everything."""
    return lambda _: {"allowed": True, **more}


def deny(**status: Any) -> Handler:
    """A webhook that denies everything."""
    return lambda _: {"allowed": False, **({"status": status} if status else {})}


def patch(*operations: Obj) -> Handler:
    """A webhook that changes the object."""
    body = base64.b64encode(json.dumps(operations).encode()).decode()
    return allow(patch=body, patchType="JSONPatch")


def annotate(key: str, value: str) -> Handler:
    """A webhook that sets one annotation, whatever is there."""

    def judge(request: Obj) -> Obj | Reply:
        have = request["object"]["metadata"].get("annotations") or {}
        whole = {"op": "add", "path": "/metadata/annotations", "value": have | {key: value}}
        return patch(whole)(request)

    return judge


class WebhookPlayer:
    """Answers for every webhook; the first part of the path says for which."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.requests: dict[str, list[Obj]] = {}
        self.paths: list[str] = []
        self.connections: set[int] = set()
        self.gate = threading.Event()

    def answer(self, seen: Seen) -> Reply:
        """The answer of the webhook that the path names."""
        self.connections.add(threading.get_ident())
        name = seen.path.split("?")[0].strip("/")
        if not seen.body:
            return Reply(status=405)
        review = json.loads(seen.body)
        request = review["request"]
        response: Obj | Reply
        if name == "probe":
            response = {"allowed": False, "status": {"message": "ready"}}
        elif _is_own_write(request):
            response = {"allowed": True}
        else:
            self.paths.append(seen.path)
            self.requests.setdefault(name, []).append(request)
            response = self.handlers[name](request)
        if isinstance(response, Reply):
            return response
        whole = {
            "apiVersion": review["apiVersion"],
            "kind": "AdmissionReview",
            "response": {"uid": request["uid"], **response},
        }
        return Reply(body=json.dumps(whole).encode())


def _is_own_write(request: Obj) -> bool:
    """Whether a write belongs to the bench or to a controller, not to the situation."""
    meta = (request.get("object") or request.get("oldObject") or {}).get("metadata", {})
    return "probe" in (meta.get("labels") or {}) or meta.get("name") == "kube-root-ca.crt"


class Answer(NamedTuple):
    """What an API server answered."""

    status: int
    body: Obj
    warnings: list[str]

    @property
    def refusal(self) -> tuple[int, str, str]:
        """A refusal in short."""
        return self.status, self.body.get("reason", ""), self.body.get("message", "")


class Bench:
    """One API server, one namespace, some webhooks."""

    def __init__(self, kubeconfig: Path, stranger: WebhookPlayer, web: Web, namespace: str) -> None:
        self._transport = HttpsTransport(load_config(kubeconfig))
        self.webhooks = stranger
        self.web = web
        self.ns = namespace
        self.notes: list[Any] = []
        self._configurations: list[str] = []
        self._count = 0

    @property
    def path(self) -> str:
        """The path of the bench's namespace."""
        return f"/api/v1/namespaces/{self.ns}"

    async def open(self) -> None:
        """Make the namespace, with a label of its own."""
        meta = {"name": self.ns, "labels": {"bench": self.ns}}
        created = await self.ask(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": meta},
        )
        assert created.status == 201, created

    async def close(self) -> None:
        """Remove the webhooks and close the connections."""
        await self.unregister()
        self.webhooks.gate.set()
        await self._transport.close()

    async def unregister(self) -> None:
        """Remove the webhooks; a server that still calls them gets their permission."""
        for path in self._configurations:
            await self.ask("DELETE", path)
        self._configurations.clear()
        for name in self.webhooks.handlers:
            self.webhooks.handlers[name] = allow()

    async def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, **query: str
    ) -> Answer:
        """Send one request."""
        response = await self._transport.send(
            Request(
                method=method,
                path=path,
                query=query,
                headers={"Content-Type": kind, "Accept": JSON} if body is not None else {},
                body=None if body is None else json.dumps(body).encode(),
            )
        )
        try:
            content = await response.read()
        finally:
            await response.close()
        headers = response.headers
        warnings = headers.getall("Warning", []) if hasattr(headers, "getall") else []
        # A path that is not served yet is answered in plain text.
        known = content.startswith(b"{")
        body = json.loads(content) if known else {"message": content.decode()}
        return Answer(response.status, body, list(warnings))

    async def wait_until_served(self, path: str) -> None:
        """Wait until a path is served."""
        async with asyncio.timeout(30):
            while True:
                if (await self.ask("GET", path)).status == 200:
                    return
                await asyncio.sleep(0.05)

    async def register(
        self,
        name: str,
        judge: Handler | None = None,
        *,
        mutating: bool = False,
        configuration: str = "",
        more: Mapping[str, Handler] | None = None,
        **spec: Any,
    ) -> Answer:
        """Register a webhook for ConfigMaps of this namespace and wait until it is known.

        ``more`` are further webhooks of the same configuration, each like the first.
        """
        judges = {name: judge or allow(), **(more or {})}
        self.webhooks.handlers.update(judges)
        own = {"matchLabels": {"bench": self.ns}}
        webhooks: list[Obj] = [
            {
                "name": f"{webhook}.zonewise.io",
                "clientConfig": self.client(webhook),
                "rules": [rule()],
                "namespaceSelector": own,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                **spec,
            }
            for webhook in judges
        ]
        self._count += 1
        mark = f"{self.ns}-{self._count}"
        webhooks.append(
            {
                "name": PROBE,
                "clientConfig": self.client("probe"),
                "rules": [rule()],
                "namespaceSelector": own,
                "objectSelector": {"matchLabels": {"probe": mark}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        )
        what = "Mutating" if mutating else "Validating"
        path = f"/apis/admissionregistration.k8s.io/v1/{what.lower()}webhookconfigurations"
        full = f"{configuration or 'hooks'}-{mark}"
        created = await self.ask(
            "POST",
            path,
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{what}WebhookConfiguration",
                "metadata": {"name": full},
                "webhooks": webhooks,
            },
        )
        if created.status != 201:
            return created
        self._configurations.append(f"{path}/{full}")
        probe = config("probe", labels={"probe": mark})
        async with asyncio.timeout(30):
            while True:
                answer = await self.ask("POST", f"{self.path}/configmaps", probe, dryRun="All")
                if PROBE in answer.body.get("message", ""):
                    break
                await asyncio.sleep(0.05)
        for webhook in judges:
            self.webhooks.requests.pop(webhook, None)
        return created

    def client(self, name: str) -> Obj:
        """How to call the webhook of this name."""
        bundle = base64.b64encode(CA.cert_pem.bytes()).decode()
        return {"url": f"{self.web.url}/{name}", "caBundle": bundle}

    async def note(self, what: str, answer: Answer) -> Answer:
        """Write down an answer."""
        if answer.status >= 400:
            body: Any = answer.refusal[1:]
        else:
            body = answer.body
        self.notes.append((what, answer.status, self.plain(body), self.plain(answer.warnings)))
        return answer

    def note_requests(self, *names: str) -> None:
        """Note the requests that webhooks got since they were registered."""
        for name in names:
            questions = [
                self._question(request) for request in self.webhooks.requests.get(name, [])
            ]
            self.notes.append((f"{name} was asked", questions))

    def _question(self, request: Obj) -> Obj:
        question = {**request, "userInfo": "someone", "uid": "fresh"}
        if request.get("subResource") in {"binding", "eviction", "scale", "token"}:
            # Owners of these fields differ; of a token only the audiences are compared.
            for key in ("object", "oldObject"):
                if request[key]:
                    meta = {"namespace": request[key]["metadata"]["namespace"]}
                    question[key] = {"spec": None} | request[key] | {"metadata": meta}
                    if request["subResource"] == "token":
                        question[key] = {"audiences": request[key]["spec"]["audiences"]}
        return dict(self.plain(question))

    def plain(self, value: Any) -> Any:
        """A value without what differs from run to run."""
        if isinstance(value, dict):
            return {
                key: f"some {key}" if key in OWN and content else self.plain(content)
                for key, content in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        if isinstance(value, str):
            text = value.replace(self.ns, "NS").replace(str(self.web.port), "PORT")
            return _TIME.sub("TIME", _UID.sub("UID", text))
        return value


def rule(
    *resources: str,
    operations: tuple[str, ...] = ("*",),
    groups: tuple[str, ...] = ("",),
    versions: tuple[str, ...] = ("*",),
    scope: str = "*",
) -> Obj:
    """A rule of a webhook, by default for ConfigMaps."""
    return {
        "operations": list(operations),
        "apiGroups": list(groups),
        "apiVersions": list(versions),
        "resources": list(resources or ("configmaps",)),
        "scope": scope,
    }


def config(name: str, *, labels: Mapping[str, str] | None = None, **data: str) -> Obj:
    """A ConfigMap."""
    meta: Obj = {"name": name}
    if labels:
        meta["labels"] = dict(labels)
    obj: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    if data:
        obj["data"] = data
    return obj
