"""Other projects' client libraries, unchanged, against the embedded API server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded

pytestmark = [
    pytest.mark.real,
    # These libraries leave sockets to the garbage collector; that is not ours to judge.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OPERATOR = """
import kopf

@kopf.on.create("example.com", "v1", "widgets")
def on_create(spec, patch, **_):
    patch.status["double"] = spec["size"] * 2

@kopf.on.delete("example.com", "v1", "widgets")
def on_delete(**_):
    pass
"""
DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    """A server for this module."""
    with embedded() as path:
        yield path


@pytest.fixture
def kubernetes() -> Any:
    """The official client, imported late: `make test` collects this file without it."""
    return import_module("kubernetes")


def test_official_client(kubernetes: Any, kubeconfig: Path) -> None:
    """The official Python client lists, watches and patches."""
    client = kubernetes.config.new_client_from_config(str(kubeconfig))
    core = kubernetes.client.CoreV1Api(client)
    body = kubernetes.client.V1ConfigMap(
        metadata=kubernetes.client.V1ObjectMeta(name="official"), data={"a": "1"}
    )
    created = core.create_namespaced_config_map("default", body)
    names = [item.metadata.name for item in core.list_namespaced_config_map("default").items]
    assert "official" in names
    patched = core.patch_namespaced_config_map("official", "default", {"data": {"b": "2"}})
    assert patched.data == {"a": "1", "b": "2"}
    seen = []
    watch = kubernetes.watch.Watch()
    for event in watch.stream(
        core.list_namespaced_config_map,
        "default",
        resource_version=created.metadata.resource_version,
        field_selector="metadata.name=official",
        timeout_seconds=20,
    ):
        seen.append((event["type"], event["object"].data))
        watch.stop()
    assert seen == [("MODIFIED", {"a": "1", "b": "2"})]
    core.delete_namespaced_config_map("official", "default")
    client.close()


def test_lightkube(kubeconfig: Path) -> None:
    """lightkube creates, applies, lists and deletes."""
    import lightkube
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ConfigMap

    config = lightkube.KubeConfig.from_file(kubeconfig)
    client = lightkube.Client(config=config, field_manager="lightkube")
    meta = ObjectMeta(name="light", namespace="default", labels={"by": "lightkube"})
    client.create(ConfigMap(metadata=meta, data={"a": "1"}))
    applied = client.apply(ConfigMap(metadata=meta, data={"a": "2"}), force=True)
    assert applied.data == {"a": "2"}
    config_maps = list(client.list(ConfigMap, labels={"by": "lightkube"}))
    assert [config_map.metadata and config_map.metadata.name for config_map in config_maps] == [
        "light"
    ]
    client.delete(ConfigMap, "light", namespace="default")


def test_kopf_runs_an_operator(kubernetes: Any, kubeconfig: Path, tmp_path: Path) -> None:
    """An operator written with kopf serves a custom resource and finalizes it."""
    client = kubernetes.config.new_client_from_config(str(kubeconfig))
    definitions = kubernetes.client.ApiextensionsV1Api(client)
    customs = kubernetes.client.CustomObjectsApi(client)
    definitions.create_custom_resource_definition(DEFINITION)
    program = tmp_path / "operator.py"
    program.write_text(OPERATOR)
    operator = subprocess.Popen(
        [sys.executable, "-m", "kopf", "run", "--namespace=default", str(program)],
        env={"KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert operator.stderr is not None
    lines: list[str] = []
    reader = threading.Thread(target=lines.extend, args=(operator.stderr,), daemon=True)
    reader.start()
    widget = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 21},
    }
    collection = ("example.com", "v1", "default", "widgets")
    try:
        created = customs.create_namespaced_custom_object(*collection, widget)
        watch = kubernetes.watch.Watch()
        for event in watch.stream(
            customs.list_namespaced_custom_object,
            *collection,
            resource_version=created["metadata"]["resourceVersion"],
            timeout_seconds=60,
        ):
            status = event["object"].get("status", {})
            if status.get("double") == 42:
                watch.stop()
        customs.delete_namespaced_custom_object(*collection, "w")
        watch = kubernetes.watch.Watch()
        gone = False
        for event in watch.stream(
            customs.list_namespaced_custom_object,
            *collection,
            resource_version=created["metadata"]["resourceVersion"],
            timeout_seconds=60,
        ):
            if event["type"] == "DELETED":
                gone = True
                watch.stop()
        assert gone, "".join(lines)
    finally:
        operator.terminate()
        operator.wait(timeout=30)
        reader.join(timeout=10)
        operator.stderr.close()
        client.close()
