"""Snapshots of live clusters, stores and dumps."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runtime.memory_server import MemoryServer, refusal

from zonewise.api.errors import ConfigError, Forbidden, ServerError
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.apps import Deployment
from zonewise.api.objects.core import Node, Service
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.cache.snapshot import Snapshot
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client

NODES = """\
apiVersion: v1
items:
- apiVersion: v1
  kind: Node
  metadata:
    creationTimestamp: "2026-11-15T12:00:00Z"
    labels:
      topology.kubernetes.io/zone: zone-a
    name: node-b
    resourceVersion: "17"
  spec:
    podCIDR: 10.0.0.0/24
- apiVersion: v1
  kind: Node
  metadata:
    name: node-a
kind: List
metadata:
  resourceVersion: ""
"""

PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: ns}
spec: {nodeName: node-a}
---
# a comment alone
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: ns}
spec: {size: 3}
"""


def snapshot(text: str | bytes) -> Snapshot:
    return Snapshot.parse(text.encode() if isinstance(text, str) else text, "dump.yaml")


def refused(text: str | bytes, cls: type[Any] = Node) -> str:
    with pytest.raises(ConfigError) as caught:
        snapshot(text).all(cls)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_yaml_list_becomes_typed_objects_in_order() -> None:
    """The output of kubectl is read, and its objects are ordered by namespace and name."""
    cluster = snapshot(NODES)
    assert [node.metadata.name for node in cluster.all(Node)] == ["node-a", "node-b"]
    node = cluster.get(Node, "node-b")
    assert node is not None
    assert node.spec.pod_cidr == "10.0.0.0/24"
    assert node.metadata.labels == {"topology.kubernetes.io/zone": "zone-a"}
    assert cluster.get(Node, "nobody") is None
    assert cluster.all(Node) == cluster.all(Node)


def test_json_and_yaml_are_the_same_cluster() -> None:
    """The same objects come out of either format."""
    as_json = json.dumps(yaml.safe_load(NODES), indent=4)
    assert snapshot(as_json).all(Node) == snapshot(NODES).all(Node)


def test_several_documents_and_unknown_kinds() -> None:
    """Documents are merged, empty ones are ignored, and kinds without a class are whole."""
    cluster = snapshot(PODS)
    assert [pod.spec.node_name for pod in cluster.all(Pod)] == ["node-a"]
    widget = unstructured(Resource("example.com", "v1", "Widget", "widgets"))
    assert [item.get("spec", "size") for item in cluster.all(widget)] == [3]
    assert cluster.kinds() == {"Pod": 1, "Widget.example.com": 1}
    assert [item.resource.kind for item in cluster.everything()] == ["Pod", "Widget"]
    assert cluster.all(Service) == ()
    assert not cluster.has(Service)
    assert cluster.has(Pod)


def test_a_namespace_can_be_chosen() -> None:
    """Objects are returned of all namespaces or of one."""
    text = "\n---\n".join(PODS.replace("ns}", f"{space}}}") for space in ("a", "b"))
    cluster = snapshot(text)
    assert [pod.key for pod in cluster.all(Pod)] == [("a", "p"), ("b", "p")]
    assert [pod.key for pod in cluster.all(Pod, "b")] == [("b", "p")]
    assert cluster.get(Pod, "p", "a") is not None


def test_items_of_a_typed_list_have_the_kind_of_the_list() -> None:
    """An API server's list does not repeat the kind in each item."""
    value = {
        "kind": "EndpointSliceList",
        "apiVersion": "discovery.k8s.io/v1",
        "items": [{"metadata": {"name": "s", "namespace": "ns"}, "endpoints": None}],
    }
    for text in (json.dumps(value), yaml.safe_dump(value)):
        assert [item.key for item in snapshot(text).all(EndpointSlice)] == [("ns", "s")]


def test_appended_json_dumps_are_one_cluster() -> None:
    """Several JSON values in a row are all read, and errors name the right line."""
    first = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}, indent=1)
    second = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}, indent=1)
    assert len(snapshot(f"{first}\n{second}\n").all(Node)) == 2
    assert refused(f"{first}\n{second}\n{{bad}}").startswith("dump.yaml:15: not JSON")


def test_yaml_scalars_are_read_as_by_an_api_server() -> None:
    """Dates stay strings and ``yes`` is true, as in any manifest."""
    text = NODES.replace('"2026-11-15T12:00:00Z"', "2026-11-15T12:00:00Z").replace(
        "podCIDR: 10.0.0.0/24", "unschedulable: yes"
    )
    node = snapshot(text).get(Node, "node-b")
    assert node is not None
    assert node.metadata.creation_timestamp == "2026-11-15T12:00:00Z"
    assert node.spec.unschedulable


def test_an_empty_dump_is_an_empty_cluster() -> None:
    """An empty file, only comments, or an empty list hold no objects."""
    empty = json.dumps({"apiVersion": "v1", "kind": "List", "items": []})
    null = json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": None})
    written = "apiVersion: v1\nkind: NodeList\nitems:\n"
    for text in ("", "# nothing\n", "---\n---\n", empty, null, written, "\ufeff"):
        assert snapshot(text).all(Node) == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1, 2\nb: 3\n", "dump.yaml:2: not YAML: did not find expected"),
        (NODES.replace("  kind: Node", " kind: Node"), "dump.yaml:4: not YAML"),
        ("just words\n", "dump.yaml:1: not a Kubernetes object"),
        ("- a\n- b\n", "dump.yaml:1: not a Kubernetes object"),
        ("<html><body>login</body></html>", "dump.yaml:1: not a Kubernetes object"),
        ("a: *nobody\n", "dump.yaml:1: not YAML"),
        (b"a: \xff\xfe\n", "dump.yaml:1: not YAML"),
        ('{"kind": "Node",\n "apiVersion": "v1"\n', "dump.yaml:3: not JSON"),
        ('{"kind": "Node",\n "apiVersion": v1}', "dump.yaml:2: not JSON"),
        ("metadata: {name: a}\n", "dump.yaml:1: no apiVersion and kind"),
        (f"{PODS}---\n\nmetadata: {{name: a}}\n", "dump.yaml:14: no apiVersion and kind"),
        ('{"apiVersion":"v1","kind":"List","items":[\n1]}', "dump.yaml:2: not an object"),
        ("apiVersion: v1\nkind: List\nitems:\n- 1\n", "dump.yaml:4: not an object"),
        (
            "# cut\nkind: List\nitems: 3\n",
            "dump.yaml:1: the items of this list are not a list; give",
        ),
        (
            "---\nkind: NodeList\nitems: {a: 1}\n",
            "dump.yaml:2: the items of this list are not a list",
        ),
        ('{"kind":"List","items":"x"}', "dump.yaml:1: the items of this list are not a list; give"),
        ('\n{"items":{},"kind":"PodList"}', "dump.yaml:1: the items of this list are not a list"),
        (
            NODES.replace("podCIDR: 10.0.0.0/24", "podCIDR: 5"),
            "dump.yaml:3: Node: Expected `str`, got `int` - at `$.spec.podCIDR`",
        ),
        (
            NODES.replace("    name: node-a\n", "    labels: {}\n"),
            "dump.yaml:13: this Node has no name",
        ),
    ],
)
def test_a_bad_dump_is_one_sentence_with_file_and_line(text: str | bytes, sentence: str) -> None:
    """The error says where in the dump the mistake is."""
    assert refused(text).startswith(sentence)


def test_a_bad_object_inside_a_json_list_is_found() -> None:
    """The line is that of the object, not of the list."""
    value = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "good"}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "bad"}}
            | {"spec": {"replicas": "three"}},
        ],
    }
    text = json.dumps(value, indent=1)
    line = next(n for n, row in enumerate(text.split("\n"), 1) if "{" in row and n > 11)
    assert refused(text, Deployment).startswith(f"dump.yaml:{line}: Deployment: Expected `int`")


def test_another_version_of_a_kind_is_refused() -> None:
    """An old dump is refused with advice, instead of looking empty."""
    text = "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: x}\n"
    sentence = refused(text, PodDisruptionBudget)
    assert "policy/v1beta1" in sentence
    assert "kubectl get poddisruptionbudgets.v1.policy" in sentence


def test_files_merge_into_one_cluster(tmp_path: Path) -> None:
    """Repeated files are parts of one cluster, and the later object counts."""
    (tmp_path / "nodes.yaml").write_text(NODES)
    (tmp_path / "more.yaml").write_text(
        PODS + "---\n{apiVersion: v1, kind: Node, metadata: {name: node-a, labels: {new: ''}}}\n"
    )
    (cluster,) = Snapshot.load([tmp_path / "nodes.yaml", str(tmp_path / "more.yaml")])
    assert cluster.name == "nodes"
    assert len(cluster.all(Node)) == 2
    assert len(cluster.all(Pod)) == 1
    node = cluster.get(Node, "node-a")
    assert node is not None
    assert node.metadata.labels == {"new": ""}


def test_each_file_of_a_folder_is_a_cluster(tmp_path: Path) -> None:
    """A folder of dumps is a fleet; other files in it are ignored."""
    (tmp_path / "east.yaml").write_text(NODES)
    (tmp_path / "west.json").write_text(json.dumps(yaml.safe_load(NODES)))
    (tmp_path / "README.md").write_text("not a dump")
    (tmp_path / ".hidden.yaml").write_text("{")
    (tmp_path / "sub.yaml").mkdir()
    clusters = Snapshot.load([tmp_path])
    assert [cluster.name for cluster in clusters] == ["east", "west"]
    assert [len(cluster.all(Node)) for cluster in clusters] == [2, 2]


def test_the_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash reads what another program prints."""

    class Input:
        buffer = io.BytesIO(NODES.encode())

    monkeypatch.setattr("sys.stdin", Input)
    (cluster,) = Snapshot.load(["-"])
    assert cluster.name == "stdin"
    assert len(cluster.all(Node)) == 2


def test_paths_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Missing files, empty folders and mixtures are refused with advice."""
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml: no such file"):
        Snapshot.load([tmp_path / "nowhere.yaml"])
    with pytest.raises(ConfigError, match=r"no \.yaml, \.yml or \.json file in the folder"):
        Snapshot.load([tmp_path])
    file = tmp_path / "a.yaml"
    file.write_text(NODES)
    with pytest.raises(ConfigError, match="give folders or files, not both"):
        Snapshot.load([file, tmp_path])
    with pytest.raises(ConfigError, match="only once"):
        Snapshot.load(["-", "-"])


async def test_a_live_cluster_is_the_same_type() -> None:
    """Kinds are listed; a kind the cluster does not have is empty."""
    server = MemoryServer()
    server.put("/api/v1/nodes", "b")
    server.put("/api/v1/nodes", "a")
    server.put("/api/v1/pods", "p", "ns")
    widget = unstructured(Resource("example.com", "v1", "Widget", "widgets"))
    cluster = await Snapshot.live(Client(server), [Node, Pod, widget], name="east")
    assert cluster.name == "east"
    assert [node.metadata.name for node in cluster.all(Node)] == ["a", "b"]
    assert cluster.all(widget) == ()
    assert cluster.kinds() == {"Node": 2, "Pod": 1, "Widget.example.com": 0}
    with pytest.raises(LookupError, match="services were not read"):
        cluster.all(Service)


async def test_a_forbidden_kind_is_not_empty() -> None:
    """A forbidden kind raises when it is read, and not before; other failures raise at once."""
    server = MemoryServer()
    server.put("/api/v1/nodes", "a")
    server.always = lambda request: refusal(403, "Forbidden") if "pods" in request.path else None
    cluster = await Snapshot.live(Client(server), [Node, Pod])
    assert cluster.has(Node)
    with pytest.raises(Forbidden):
        cluster.all(Pod)
    server.always = lambda request: refusal(500, "Broken") if "pods" in request.path else None
    with pytest.raises(ServerError):
        await Snapshot.live(Client(server), [Node, Pod])


def test_stores_and_lists_become_snapshots() -> None:
    """A snapshot can be made from a controller's stores."""
    store: Store[Node] = Store(compact=True)
    store.apply(Node(metadata=ObjectMeta(name="a", resource_version="1")))
    cluster = Snapshot.of({Node: store, Pod: []}, name="here")
    assert [node.metadata.name for node in cluster.all(Node)] == ["a"]
    assert cluster.all(Pod) == ()
