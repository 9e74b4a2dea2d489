"""A small client of one API server that remembers the answers.

What it remembers of an answer is what a client may rely on: the status, a refusal's reason and
causes, an object without times, uids and versions. A resourceVersion is opaque, so only its
relation to the last one seen of the same object is kept. The words of messages are not. Two
servers that got the same requests must have given the same answers.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import yaml

Obj = dict[str, Any]

JSON = "application/json"
PATCHES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
SECONDS = 60.0
TIMES = frozenset(
    {
        "creationTimestamp",
        "deletionTimestamp",
        "lastTransitionTime",
        "lastUpdateTime",
        "lastProbeTime",
        "lastHeartbeatTime",
        "lastPhaseTransitionTime",
        "expirationTimestamp",
        "time",
    }
)
DROPPED = frozenset({"uid", "resourceVersion", "creationTimestamp", "managedFields", "description"})
ACCOUNT = frozenset({"serviceAccount", "serviceAccountName"})
"""Set by an admission plugin that the real server here runs without."""
BRIEF = (
    "name",
    "namespace",
    "generation",
    "labels",
    "annotations",
    "finalizers",
    "deletionTimestamp",
)
"""What is remembered of an object's metadata where the rest differs from run to run."""
CHOSEN = frozenset({"clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort", "token"})
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def encode(value: Any) -> bytes:
    """JSON without spaces: a real server compares the bytes of raw fields."""
    return json.dumps(value, separators=(",", ":")).encode()


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: http.client.HTTPMessage
    text: bytes

    @property
    def body(self) -> Obj:
        """The body, which must be a JSON object."""
        value = json.loads(self.text)
        assert isinstance(value, dict)
        return value

    @property
    def meta(self) -> Obj:
        """The object's metadata."""
        meta = self.body["metadata"]
        assert isinstance(meta, dict)
        return meta

    @property
    def version(self) -> str:
        """The resourceVersion of the object or list."""
        return str(self.meta["resourceVersion"])

    @property
    def outcome(self) -> str:
        """The status with the reason of the refusal, or with HTTP's own phrase for it.

        So ``404 NotFound`` is an object that does not exist, ``404 Not Found`` an unknown path.
        """
        reason = ""
        with suppress(ValueError, AttributeError):
            refusal = json.loads(self.text) if self.status >= 400 else {}
            reason = refusal.get("reason", "") if refusal.get("kind") == "Status" else ""
        return f"{self.status} {reason or HTTPStatus(self.status).phrase}"

    @property
    def message(self) -> str:
        """The text for people."""
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Reason and field of each cause of a refusal."""
        details = self.body.get("details") or {}
        causes = details.get("causes") or []
        return sorted({(cause.get("reason", ""), cause.get("field", "")) for cause in causes})

    @property
    def names(self) -> list[str]:
        """The names in a list."""
        return [item["metadata"]["name"] for item in self.body["items"]]

    @property
    def warnings(self) -> list[str]:
        """The server's Warning headers."""
        return list(self.headers.get_all("Warning") or [])


class Event(NamedTuple):
    """One event of a watch."""

    type: str
    object: Obj

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.object.get("metadata", {}).get("name", ""))

    @property
    def version(self) -> int:
        """The event's resourceVersion, which orders it among the others."""
        return int(self.object["metadata"]["resourceVersion"])


class Stream:
    """A watch that is being read."""

    def __init__(self, api: Api, response: http.client.HTTPResponse) -> None:
        self._api = api
        self._response = response

    def __iter__(self) -> Iterator[Event]:
        """Events until the server ends the stream."""
        while line := self._response.readline():
            event = json.loads(line)
            yield Event(event["type"], event["object"])

    def take(self, count: int, *, marks: bool = False) -> list[Event]:
        """The next so many events; bookmarks count only with ``marks``."""
        taken: list[Event] = []
        for event in self if count else ():
            if marks or event.type != "BOOKMARK":
                taken.append(event)
            if len(taken) == count:
                break
        self._api.note_events(taken)
        return taken

    def until(self, stop: Callable[[Event], bool]) -> list[Event]:
        """Events up to and with the one that stops; no bookmarks but that one."""
        taken: list[Event] = []
        for event in self:
            if stop(event):
                taken.append(event)
                break
            if event.type != "BOOKMARK":
                taken.append(event)
        self._api.note_events(taken)
        return taken

    def rest(self) -> list[Event]:
        """All events until the server ends the stream."""
        return self.take(10_000)


class Server:
    """The address of an API server and the credentials of its administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        url = urlsplit(cluster["server"])
        self.host, self.port = url.hostname or "", url.port or 443
        self.token = str(user.get("token", ""))
        self.untrusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (self.untrusted, self.trusted):
            with _file_of(cluster, "certificate-authority", kubeconfig.parent) as path:
                context.load_verify_locations(path)
        if "client-certificate" in user or "client-certificate-data" in user:
            with (
                _file_of(user, "client-certificate", kubeconfig.parent) as certificate,
                _file_of(user, "client-key", kubeconfig.parent) as key,
            ):
                self.trusted.load_cert_chain(certificate, key)

    def connect(self, *, trusted: bool = True) -> http.client.HTTPSConnection:
        """A new connection."""
        context = self.trusted if trusted else self.untrusted
        return http.client.HTTPSConnection(self.host, self.port, timeout=SECONDS, context=context)


@contextmanager
def _file_of(entry: Obj, key: str, folder: Path) -> Iterator[str]:
    """The file with a key or certificate of a kubeconfig's entry, which may hold it itself."""
    if f"{key}-data" in entry:
        with tempfile.NamedTemporaryFile() as file:
            file.write(base64.b64decode(entry[f"{key}-data"]))
            file.flush()
            yield file.name
    else:
        yield str(folder / entry[key])


class Api:
    """A server, a namespace in it to work in, and a notebook."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.ns = namespace
        self.notes: list[list[Any]] = []
        self.brief = False
        self.managed = False
        self._connections: dict[bool, http.client.HTTPSConnection] = {}
        self._streams: list[http.client.HTTPSConnection] = []
        self._versions: dict[str, int] = {}

    @property
    def core(self) -> str:
        """The path of the namespace in the core group."""
        return f"/api/v1/namespaces/{self.ns}"

    def group(self, group: str) -> str:
        """The path of the namespace in a group, given as group/version."""
        return f"/apis/{group}/namespaces/{self.ns}"

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._connections.values(), *self._streams):
            connection.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: str = JSON,
        headers: Mapping[str, str] | None = None,
        user: str = "",
        groups: tuple[str, ...] = (),
        token: str | None = None,
        quiet: bool = False,
        expect: str = "",
        **query: Any,
    ) -> Answer:
        """Send one request; ``quiet`` keeps it out of the notebook.

        ``body`` is bytes to be sent as they are, or a value to be sent as JSON. ``user`` is
        impersonated by the administrator; ``token`` is another user's, empty for an anonymous one.
        ``expect`` is the outcome that the answer must have, for example ``422 Invalid``.
        """
        url = f"{path}?{urlencode(query)}" if query else path
        content = body if body is None or isinstance(body, bytes) else encode(body)
        trusted = token is None
        connection = self._connections.get(trusted)
        if connection is None:
            connection = self._connections[trusted] = self.server.connect(trusted=trusted)
        connection.putrequest(method, url, skip_accept_encoding=True)
        named = {"Accept": JSON, "User-Agent": "contract/1"}
        if content is not None:
            named |= {"Content-Type": type, "Content-Length": str(len(content))}
        if user:
            named["Impersonate-User"] = user
        secret = self.server.token if token is None else token
        if secret:
            named["Authorization"] = f"Bearer {secret}"
        for key, value in {**named, **(headers or {})}.items():
            connection.putheader(key, value)
        for group in groups:
            connection.putheader("Impersonate-Group", group)
        with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            connection.endheaders(content)  # or refused before all is sent, and answered already
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        if response.will_close:
            connection.close()
        summary = self.summarize(answer)  # a quiet answer's version counts for the next one, too
        if not quiet:
            question = f"{method} {self._plain(url)}"
            self.notes.append([f"{user}: {question}" if user else question, summary])
        assert expect in ("", answer.outcome), f"{answer.outcome}: {answer.text.decode()}"
        return answer

    def get(self, path: str, **more: Any) -> Answer:
        """GET."""
        return self.ask("GET", path, **more)

    def wait_until_caught_up(self, path: str) -> None:
        """Wait until what a server answers from memory is as new as the list of now.

        Asked for version 0 or an older one, a busy real server may not know yet what it stored.
        """
        now = self.get(path, quiet=True).version
        while self.get(path, resourceVersion=now, quiet=True).status != 200:
            pass

    def create(self, path: str, body: Obj, **more: Any) -> Answer:
        """POST."""
        return self.ask("POST", path, body, **more)

    def put(self, path: str, body: Obj, **more: Any) -> Answer:
        """PUT."""
        return self.ask("PUT", path, body, **more)

    def patch(self, path: str, body: Any, kind: str = "merge", **more: Any) -> Answer:
        """PATCH."""
        return self.ask("PATCH", path, body, type=PATCHES[kind], **more)

    def apply(self, path: str, body: Obj, manager: str = "one", **more: Any) -> Answer:
        """Server-side apply."""
        return self.ask("PATCH", path, body, type=PATCHES["apply"], fieldManager=manager, **more)

    def delete(self, path: str, body: Obj | None = None, **more: Any) -> Answer:
        """DELETE."""
        return self.ask("DELETE", path, body, **more)

    def watch(self, path: str, *, accept: str = JSON, **query: Any) -> Stream:
        """Begin to watch."""
        connection = self.server.connect()
        self._streams.append(connection)
        options = {"watch": "1", "timeoutSeconds": "30", **query}
        headers = {"Accept": accept}
        if self.server.token:
            headers["Authorization"] = f"Bearer {self.server.token}"
        connection.request("GET", f"{path}?{urlencode(options)}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return Stream(self, response)

    def note(self, what: str, value: Any) -> None:
        """Remember a value that is not an answer."""
        self.notes.append([what, self._clean(value)])

    def note_events(self, events: list[Event]) -> None:
        """Remember events of a watch."""
        self.notes.append(["events", [self._event(event) for event in events]])

    def summarize(self, answer: Answer) -> Obj:
        """The part of an answer that a client may rely on."""
        summary: Obj = {"status": answer.status}
        if answer.warnings:
            summary["warnings"] = len(answer.warnings)
        if "Retry-After" in answer.headers:
            summary["retry"] = answer.headers["Retry-After"]
        try:
            body = json.loads(answer.text)
        except ValueError:
            return summary
        if not isinstance(body, dict):
            return summary
        if body.get("kind") == "Status" and answer.status >= 400:
            details = body.get("details") or {}
            summary |= {
                "reason": body.get("reason"),
                "of": [details.get(key) for key in ("group", "kind", "name")],
                "causes": answer.causes,
            }
            return dict(self._clean(summary))
        if "items" in body and str(body.get("kind", "")).endswith("List"):
            summary |= {
                "kind": body["kind"],
                "apiVersion": body["apiVersion"],
                "items": [self._object(item) for item in body["items"] or []],
                "more": bool(body["metadata"].get("continue")),
                "remaining": body["metadata"].get("remainingItemCount"),
            }
            return dict(self._clean(summary))
        meta = body.get("metadata") or {}
        version, uid = meta.get("resourceVersion"), meta.get("uid")
        summary["object"] = self._object(body)
        if version and version.isdigit() and uid:
            summary["version"] = self._relation(uid, int(version))
        elif meta.get("name"):
            summary["version"] = "none"
        return dict(self._clean(summary))

    def _relation(self, uid: str, version: int) -> str:
        last = self._versions.get(uid)
        self._versions[uid] = version
        if last is None:
            return "first"
        return "same" if version == last else "newer" if version > last else "older"

    def _event(self, event: Event) -> Any:
        if event.type == "ERROR":
            return self._clean([event.type, event.object.get("code"), event.object.get("reason")])
        if event.type == "BOOKMARK":
            notes = event.object["metadata"].get("annotations") or {}
            return self._clean([event.type, event.object["kind"], sorted(notes)])
        return self._clean([event.type, self._object(event.object)])

    def _object(self, obj: Obj) -> Obj:
        if not self.brief or obj.get("kind") == "Status":
            return obj
        meta = obj.get("metadata") or {}
        lean: Obj = {key: obj.get(key) for key in ("kind", "apiVersion")}
        lean["metadata"] = {key: meta[key] for key in BRIEF if key in meta}
        return lean

    def _clean(self, value: Any, key: str = "") -> Any:
        """Without what is empty, and without what differs from run to run."""
        if key in TIMES and isinstance(value, str):
            return "<time>"
        if key == "fieldsV1" and self.managed:
            return sorted(owned(value, ""))
        if key in CHOSEN and value and value not in ("None", ["None"]):
            return "<chosen>"
        if isinstance(value, dict):
            prefix = value.get("generateName")
            result = {}
            for name, content in value.items():
                if name in DROPPED and not (name == "managedFields" and self.managed):
                    continue
                if name in ACCOUNT and content == "default":
                    continue
                clean = self._clean(content, name)
                if name == "name" and prefix and str(content).startswith(str(prefix)):
                    clean = self._plain(f"{prefix}<chosen>")
                if clean not in (None, {}, []):
                    result[self._plain(name)] = clean
            return result
        if isinstance(value, list | tuple):
            if key == "managedFields":
                value = owners(value)
            return [self._clean(item, key) for item in value if not _is_access(item)]
        return self._plain(value) if isinstance(value, str) else value

    def _plain(self, text: str) -> str:
        text = text.replace(self.ns, "NS")
        text = re.sub(r"(resourceVersion=)[1-9]\d*", r"\1<version>", text)
        text = re.sub(r"(continue=)[^&]+", r"\1<token>", text)
        return _MOMENT.sub("<time>", _UID.sub("<uid>", text))


def owned(fields: Obj, at: str) -> Iterator[str]:
    """The paths of fieldsV1 that are owned."""
    if at and (not fields or "." in fields):
        yield at
    for key, below in fields.items():
        if key != ".":
            yield from owned(below, f"{at}/{key}" if at else key)


def owners(entries: Sequence[Obj]) -> list[Obj]:
    """Managed fields in an order that no clock decides.

    A server sorts them by the second in which they were written, so two writes that fall into one
    second stand the other way round when the second turns between them. That the server's order
    is by time is asserted here, where the times are still known.
    """
    times = [(entry.get("operation", ""), entry.get("time", "")) for entry in entries]
    assert times == sorted(times), f"managed fields are not in the order of their times: {times}"
    names = ("manager", "apiVersion", "subresource")
    return sorted(
        entries,
        key=lambda entry: (
            entry.get("operation", ""),
            "time" in entry,
            *(entry.get(name, "") for name in names),
        ),
    )


def _is_access(value: Any) -> bool:
    name = value.get("name") if isinstance(value, dict) else None
    return isinstance(name, str) and name.startswith("kube-api-access-")
