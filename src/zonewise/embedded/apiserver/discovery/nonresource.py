"""Non-resource paths: versions, health, metrics, discovery, OpenAPI, public keys."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from zonewise.embedded.apiserver.auth.tokens import ISSUER, Tokens
from zonewise.embedded.apiserver.discovery import discovery, openapi
from zonewise.embedded.apiserver.registry import Registry
from zonewise.embedded.apiserver.request.call import Answer, Call
from zonewise.embedded.apiserver.store.state import State

VERSION = "v1.36.4+zonewise"
HEALTH = ("/healthz", "/livez", "/readyz")


class NonResource:
    """Answers requests to paths that are not of resources."""

    def __init__(
        self,
        *,
        registry: Registry,
        state: State,
        tokens: Tokens,
        address: str,
        requests: Mapping[tuple[str, str, str, int], int],
    ) -> None:
        self._registry = registry
        self._state = state
        self._tokens = tokens
        self._address = address
        self._discovery = discovery.Discovery(())
        self._openapi = openapi.OpenApiDocuments(())
        self._metrics = CollectorRegistry(auto_describe=False)
        self._metrics.register(_MetricsCollector(state, requests))
        self._refresh()
        registry.on_change(self._refresh)

    def answer(self, call: Call) -> Answer | None:
        """The answer for a path, or None if there is none."""
        path = call.path.rstrip("/") or "/"
        first = path.split("/")[1]
        if first in {"healthz", "livez", "readyz"}:
            return self._answer_health(path, call)
        if first == "openapi":
            return self._openapi.answer(path, call)
        if first in {"api", "apis"}:
            return self._discovery.answer(path, call)
        build: Callable[[], Answer] | None = {
            "/": self._answer_root,
            "/version": _answer_version,
            "/metrics": self._answer_metrics,
            "/.well-known/openid-configuration": self._answer_issuer,
            "/openid/v1/jwks": self._answer_keys,
        }.get(path)
        return build() if build else None

    def _refresh(self) -> None:
        kinds = tuple(served.kind for served in self._registry)
        self._discovery = discovery.Discovery(kinds)
        self._openapi = openapi.OpenApiDocuments(kinds)

    def _answer_health(self, path: str, call: Call) -> Answer | None:
        parts = path.split("/")[1:]
        failure = self._state.failure
        ready = failure is None or parts[0] == "livez"
        names = ("ping", "log")
        if len(parts) > 1 and parts[1] not in names:
            return None
        if ready and "verbose" not in call.query:
            return _text_answer("ok")
        lines = ["[+]ping ok", f"[-]log failed: {failure}" if not ready else "[+]log ok"]
        closing = f"{parts[0]} check {'passed' if ready else 'failed'}"
        return _text_answer("\n".join([*lines, closing, ""]), 200 if ready else 500)

    def _answer_metrics(self) -> Answer:
        return Answer(
            body=generate_latest(self._metrics),
            content_type="text/plain; version=0.0.4; charset=utf-8",
        )

    def _answer_root(self) -> Answer:
        groups = {served.kind.resource.root for served in self._registry}
        paths = sorted(
            {"/api", "/apis", "/metrics", "/openapi/v3", "/version", *HEALTH}
            | groups
            | {root.rpartition("/")[0] for root in groups}
        )
        return _json_answer({"paths": paths})

    def _answer_issuer(self) -> Answer:
        return _json_answer(
            {
                "issuer": ISSUER,
                "jwks_uri": f"{self._address}/openid/v1/jwks",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            }
        )

    def _answer_keys(self) -> Answer:
        return Answer(
            body=msgspec.json.encode(self._tokens.key_set()),
            content_type="application/jwk-set+json",
            verbatim=True,
        )


class _MetricsCollector:
    """Objects and watchers by kind, and requests."""

    def __init__(self, state: State, requests: Mapping[tuple[str, str, str, int], int]) -> None:
        self._state = state
        self._requests = requests

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        """The present numbers."""
        objects = GaugeMetricFamily(
            "apiserver_storage_objects", "Number of stored objects by kind.", labels=["resource"]
        )
        watchers = GaugeMetricFamily(
            "apiserver_longrunning_requests", "Number of watches by kind.", labels=["resource"]
        )
        for kind, count, watching in self._state.kinds():
            group, _, plural = kind.partition("/")
            name = f"{plural}.{group}" if group else plural
            objects.add_metric([name], count)
            watchers.add_metric([name], watching)
        version = GaugeMetricFamily(
            "zonewise_resource_version", "The newest resourceVersion.", self._state.visible_rv
        )
        requests = CounterMetricFamily(
            "apiserver_request",
            "Number of requests by verb, resource and the code of their answer.",
            labels=["verb", "resource", "subresource", "code"],
        )
        for (verb, resource, subresource, code), count in sorted(self._requests.items()):
            requests.add_metric([verb, resource, subresource, str(code)], count)
        return [objects, watchers, version, requests]


def _answer_version() -> Answer:
    return _json_answer(
        {
            "major": "1",
            "minor": "36",
            "emulationMajor": "1",
            "emulationMinor": "36",
            "minCompatibilityMajor": "1",
            "minCompatibilityMinor": "35",
            "gitVersion": VERSION,
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "none",
            "compiler": f"python{platform.python_version()}",
            "platform": f"{platform.system().lower()}/{platform.machine()}",
        }
    )


def _json_answer(value: Any) -> Answer:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    return Answer(body=text, verbatim=True)


def _text_answer(text: str, status: int = 200) -> Answer:
    return Answer(status=status, body=text.encode(), content_type="text/plain; charset=utf-8")
