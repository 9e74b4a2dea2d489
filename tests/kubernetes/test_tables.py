"""The generated tables are current, and discovery and OpenAPI equal a real server's."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from tools.tables.generation import connect, outdated, start, tables
from tools.tables.server import Server

from tools import realkube as real
from zonewise.embedded.apiserver.discovery.discovery import AGGREGATED, Discovery
from zonewise.embedded.apiserver.discovery.openapi import OpenApiDocuments
from zonewise.embedded.apiserver.request.call import Call, User
from zonewise.embedded.machinery.schema.definitions import Definitions
from zonewise.embedded.machinery.schema.kinds import builtin_kinds, served_kinds

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane of our own: its bootstrap objects are unchanged."""
    with start(real_binaries) as plane:
        yield plane


@pytest.fixture(scope="module")
def server(cluster: real.ControlPlane) -> Iterator[Server]:
    """A connection to its API server."""
    with connect(cluster) as connection:
        yield connection


def page(
    documents: Discovery | OpenApiDocuments, path: str, accept: str = "application/json"
) -> Any:
    """Our answer to a GET."""
    call = Call(method="GET", path=path, user=User("someone"), headers={"accept": accept})
    answer = documents.answer(path, call)
    assert answer is not None
    return json.loads(answer.body)


def test_the_tables_are_current(server: Server) -> None:
    """Reading the facts again gives the files of the tree, byte for byte."""
    assert outdated(tables(server)) == [], "run python -m tools.tables"


def test_discovery_is_a_real_server_s(server: Server) -> None:
    """Every document of discovery equals the real one, in both forms."""
    kinds = builtin_kinds(Definitions())
    discovery = Discovery(kinds)
    paths = {"/apis"} | {kind.resource.root for kind in kinds}
    paths |= {f"/apis/{kind.resource.group}" for kind in kinds if kind.resource.group}
    for path in sorted(paths):
        assert page(discovery, path) == server.get(path), path
    for path in ("/api", "/apis"):
        assert page(discovery, path, AGGREGATED) == server.get(path, AGGREGATED), path


def test_openapi_has_the_fields_of_a_real_server(server: Server) -> None:
    """Definitions have the same fields with the same meaning for merging as the real ones."""
    ours = page(OpenApiDocuments(builtin_kinds(Definitions())), "/openapi/v3/apis/apps/v1")
    index = server.get("/openapi/v3")["paths"]
    theirs = server.get(index["apis/apps/v1"]["serverRelativeURL"])
    compared = 0
    for name, schema in ours["components"]["schemas"].items():
        there = theirs["components"]["schemas"].get(name)
        if there is None or not name.startswith("io.k8s.api"):
            continue
        facts, properties = meaning(schema), there.get("properties", {})
        assert facts.keys() == properties.keys(), name
        assert facts == meaning(there), name
        assert schema.get("required", []) == sorted(there.get("required", [])), name
        compared += 1
    assert compared > 100


def meaning(schema: dict[str, Any]) -> dict[str, Any]:
    """The fields of a definition, without descriptions and defaults."""
    return {name: stripped(field) for name, field in schema.get("properties", {}).items()}


def stripped(value: Any) -> Any:
    """A schema without descriptions, defaults, implied extensions, and wrapped references."""
    if isinstance(value, list):
        return [stripped(item) for item in value]
    if not isinstance(value, dict):
        return value
    idle = {("x-kubernetes-list-type", "atomic")}
    if "additionalProperties" in value:
        idle.add(("x-kubernetes-map-type", "granular"))
    plain = {
        key: item
        for key, item in value.items()
        if key not in ("description", "default", "allOf")
        and not (isinstance(item, str) and (key, item) in idle)
    }
    for part in value.get("allOf", ()):
        plain.update(part)
    return {key: stripped(item) for key, item in plain.items()}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves our documents to kubectl."""

    discovery = Discovery(served_kinds())
    documents = OpenApiDocuments(served_kinds())

    def do_GET(self) -> None:
        """Answer from our documents."""
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(url.query))
        call = Call(method="GET", path=url.path, user=User("x"), headers=headers, query=query)
        source = self.documents if url.path.startswith("/openapi") else self.discovery
        answer = source.answer(url.path, call)
        self.send_response(404 if answer is None else answer.status)
        if answer is not None:
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
        self.end_headers()
        if answer is not None:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def ours() -> Iterator[str]:
    """The address of a server that serves only our documents."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_address[1]}"
        finally:
            web.shutdown()
            thread.join()


def test_kubectl_explains(cluster: real.ControlPlane, ours: str, tmp_path: Path) -> None:
    """kubectl explain drills down, recurses and shows the fields of the sources."""

    def explain(*arguments: str) -> str:
        env = {"HOME": str(tmp_path)}
        return cluster.kubectl("--server", ours, "explain", *arguments, env=env).stdout

    ports = explain("pods.spec.containers.ports")
    assert "containerPort\t<integer> -required-" in ports
    assert "enum: SCTP, TCP, UDP" in ports
    whole = explain("deployments", "--recursive")
    assert "topologySpreadConstraints\t<[]TopologySpreadConstraint>" in whole
    assert "PreferZone" in explain("service.spec.trafficPolicy")
    assert "NodeSelectorTerm" in explain("pdb.spec", "--api-version=policy/v1beta1")
    listed = cluster.kubectl("--server", ours, "api-resources", env={"HOME": str(tmp_path)}).stdout
    assert "poddisruptionbudgets" in listed


def test_kubectl_lists_the_same_kinds(
    cluster: real.ControlPlane, ours: str, tmp_path: Path
) -> None:
    """api-resources prints the same for us and for a real server."""
    arguments = ("api-resources", "-o", "wide", "--sort-by=name")
    real_list = cluster.kubectl(*arguments).stdout
    our_list = cluster.kubectl("--server", ours, *arguments, env={"HOME": str(tmp_path)}).stdout
    assert our_list.split() == real_list.split()
