"""What the default admission plugins and allocators of an API server add and refuse."""

from __future__ import annotations

import time
from typing import Any

from tests.contract.samples import BY_KIND, POD_SPEC
from tests.contract.talking import Api

Obj = dict[str, Any]


def test_pods(api: Api) -> None:
    """Pods get default tolerations, a priority and a policy, or those of their class."""
    path = f"{api.core}/pods"
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.create(path, {"metadata": {"name": "plain"}, "spec": POD_SPEC}, expect="201 Created")
    high = f"high-{api.ns}"
    api.create(
        classes,
        {"metadata": {"name": high}, "value": 1000, "preemptionPolicy": "Never"},
        expect="201 Created",
    )
    pod = {"metadata": {"name": "high"}, "spec": {**POD_SPEC, "priorityClassName": high}}
    # A real server's admission reads classes from a store that may lag.
    deadline = time.monotonic() + 180
    while (
        api.ask("POST", f"{path}?dryRun=All", pod, quiet=True).status == 403
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    api.create(path, pod, expect="201 Created")
    not_ready = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}
    all_taints = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    gates = {"schedulingGates": [{"name": "zonewise.io/wait"}]}
    cases: list[tuple[Obj, str]] = [
        ({"priorityClassName": "none"}, "403 Forbidden"),
        ({"priority": 7}, "403 Forbidden"),
        ({"priorityClassName": "system-node-critical"}, "201 Created"),
        ({"tolerations": [not_ready]}, "201 Created"),
        ({"tolerations": [all_taints]}, "201 Created"),
        (gates, "201 Created"),
        ({"runtimeClassName": "none"}, "403 Forbidden"),
        ({"nodeName": "n", **gates}, "422 Invalid"),
    ]
    for number, (more, expected) in enumerate(cases):
        body = {"metadata": {"name": f"p{number}"}, "spec": {**POD_SPEC, **more}}
        api.create(path, body, expect=expected)
    api.patch(f"{path}/p5", {"spec": {"schedulingGates": None}}, expect="200 OK")


def test_bindings(api: Api) -> None:
    """A pod is bound once, by its scheduler; the node's zone becomes its label."""
    labels = {"topology.kubernetes.io/zone": "z-1", "topology.kubernetes.io/region": "r-1"}
    node = f"node-{api.ns}"
    api.create(
        "/api/v1/nodes", {"metadata": {"name": node, "labels": labels}}, expect="201 Created"
    )
    path = f"{api.core}/pods"
    for name in ("a", "b", "c", "d"):
        api.create(
            path, {"metadata": {"name": name}, "spec": POD_SPEC}, quiet=True, expect="201 Created"
        )
    body = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": node}}
    api.create(f"{path}/a/binding", body, dryRun="All", expect="201 Created")
    api.create(f"{path}/a/binding", body, expect="201 Created")
    api.create(f"{path}/a/binding", body, expect="409 Conflict")
    api.get(f"{path}/a", expect="200 OK")
    api.create(
        f"{path}/b/binding", {**body, "metadata": {"name": "other"}}, expect="400 BadRequest"
    )
    api.create(f"{path}/b/binding", {**body, "target": {}}, expect="400 BadRequest")
    api.create(
        f"{path}/b/binding",
        {**body, "target": {"kind": "Pod", "name": "x"}},
        expect="400 BadRequest",
    )
    noted = {"metadata": {"name": "b", "annotations": {"who": "me"}, "uid": "other"}}
    api.create(f"{path}/b/binding", {**body, **noted}, expect="409 Conflict")
    noted["metadata"].pop("uid")
    api.create(f"{path}/b/binding", {**body, **noted}, expect="201 Created")
    api.get(f"{path}/b", expect="200 OK")
    api.create(f"{api.core}/bindings", {**body, "metadata": {"name": "c"}}, expect="201 Created")
    api.create(
        f"{path}/none/binding", {**body, "metadata": {"name": "none"}}, expect="404 NotFound"
    )
    api.patch(f"{path}/d", {"spec": {"nodeName": node}}, expect="422 Invalid")
    gated = {**POD_SPEC, "schedulingGates": [{"name": "zonewise.io/wait"}]}
    api.create(path, {"metadata": {"name": "g"}, "spec": gated}, quiet=True, expect="201 Created")
    api.create(f"{path}/g/binding", {**body, "metadata": {"name": "g"}}, expect="409 Conflict")


def test_nodes_and_volumes(api: Api) -> None:
    """New nodes are tainted until they are ready; volumes and claims are protected."""
    nodes = "/api/v1/nodes"
    api.create(nodes, {"metadata": {"name": f"a-{api.ns}"}}, expect="201 Created")
    taint = {"key": "mine", "effect": "NoSchedule"}
    api.create(
        nodes,
        {"metadata": {"name": f"b-{api.ns}"}, "spec": {"taints": [taint]}},
        expect="201 Created",
    )
    claims = f"{api.core}/persistentvolumeclaims"
    created = api.create(
        claims,
        {"metadata": {"name": "c"}, **BY_KIND["PersistentVolumeClaim"].fields},
        expect="201 Created",
    )
    assert created.meta["finalizers"] == ["kubernetes.io/pvc-protection"]
    volume = {"metadata": {"name": f"v-{api.ns}"}, **BY_KIND["PersistentVolume"].fields}
    created = api.create("/api/v1/persistentvolumes", volume, expect="201 Created")
    assert created.meta["finalizers"] == ["kubernetes.io/pv-protection"]
    api.patch(
        f"{claims}/c",
        {"spec": {"resources": {"requests": {"storage": "2Gi"}}}},
        expect="422 Invalid",
    )
    api.patch(f"{claims}/c", {"spec": {"accessModes": ["ReadOnlyMany"]}}, expect="422 Invalid")


def test_default_storage_class(api: Api) -> None:
    """A claim without a class gets the default one, if there is any."""
    name = f"std-{api.ns}"
    mark = {"storageclass.kubernetes.io/is-default-class": "true"}
    path = "/apis/storage.k8s.io/v1/storageclasses"
    meta = {"name": name, "annotations": mark}
    api.create(path, {"metadata": meta, "provisioner": "disk.example"}, expect="201 Created")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"{api.core}/persistentvolumeclaims"
    body = {"metadata": {"name": "a"}, "spec": spec}
    created = api.create(claims, body, quiet=True, expect="201 Created")
    while created.body["spec"].get("storageClassName") != name:  # the plugin's cache may be behind
        created = api.create(claims, body, dryRun="All", quiet=True)
        if created.status == 409:
            api.patch(f"{claims}/a", {"metadata": {"finalizers": None}}, quiet=True)
            api.delete(f"{claims}/a", quiet=True)
            created = api.create(claims, body, quiet=True)
    assert created.body["spec"]["storageClassName"] == name
    assert api.delete(f"{path}/{name}").body["kind"] == "StorageClass"


def test_services(api: Api) -> None:
    """Addresses and node ports are allocated, unique, and free again after deletion."""
    path = f"{api.core}/services"
    port = {"port": 80}

    def service(name: str, **spec: Any) -> Obj:
        return {"metadata": {"name": name}, "spec": {"ports": [port], **spec}}

    first = api.create(path, service("a", selector={"a": "b"}), expect="201 Created")
    address = first.body["spec"]["clusterIP"]
    api.create(path, service("b", clusterIP=address), expect="422 Invalid")
    api.delete(f"{path}/a", expect="200 OK")
    assert (
        api.create(path, service("b", clusterIP=address), expect="201 Created").body["spec"][
            "clusterIP"
        ]
        == address
    )
    api.create(
        path, service("headless", clusterIP="None", selector={"a": "b"}), expect="201 Created"
    )
    lonely = api.create(path, service("lonely", clusterIP="None"), expect="201 Created")
    assert lonely.body["spec"]["ipFamilyPolicy"] == "RequireDualStack"
    node = api.create(path, service("node", type="NodePort"), expect="201 Created")
    number = node.body["spec"]["ports"][0]["nodePort"]
    again = service("again", type="NodePort")
    again["spec"]["ports"] = [{"port": 80, "nodePort": number}]
    api.create(path, again, expect="422 Invalid")
    api.create(path, service("out", clusterIP="192.0.2.1"), expect="422 Invalid")
    api.create(
        path, service("name", type="ExternalName", externalName="x.example"), expect="201 Created"
    )
    api.create(
        path,
        service("lb", type="LoadBalancer", externalTrafficPolicy="Local"),
        expect="201 Created",
    )
    api.patch(f"{path}/node", {"spec": {"type": "ClusterIP"}}, expect="200 OK")
    api.patch(
        f"{path}/node",
        {"spec": {"type": "ExternalName", "externalName": "y.example"}},
        expect="200 OK",
    )
    api.patch(f"{path}/b", {"spec": {"clusterIP": "None"}}, expect="422 Invalid")
    api.patch(f"{path}/b", {"spec": {"clusterIP": None}}, expect="200 OK")
    api.create(path, service("dry", type="NodePort"), dryRun="All", expect="201 Created")
    api.patch(
        f"{path}/b/status",
        {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}},
        expect="422 Invalid",
    )


def test_slices(api: Api) -> None:
    """EndpointSlices with one zone, address or endpoint above the limit are refused."""
    path = api.group("discovery.k8s.io/v1") + "/endpointslices"

    def create(name: str, endpoints: list[Obj], expect: str, **more: Any) -> None:
        body = {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints, **more}
        answer = api.create(path, body, quiet=True, expect=expect)
        api.note(name, [answer.status, answer.causes if answer.status >= 400 else []])

    zones = [{"name": f"z{number}"} for number in range(9)]
    endpoint = {"addresses": ["10.0.0.1"]}
    create("zones", [{**endpoint, "hints": {"forZones": zones[:8]}}], "201 Created")
    create("too-many-zones", [{**endpoint, "hints": {"forZones": zones}}], "422 Invalid")
    create("twice", [{**endpoint, "hints": {"forZones": [zones[0]] * 2}}], "422 Invalid")
    addresses = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(1001)]
    endpoints = [{"addresses": [address]} for address in addresses]
    create("addresses", [{"addresses": addresses[:100]}], "201 Created")
    create("too-many-addresses", [{"addresses": addresses[:101]}], "422 Invalid")
    create("endpoints", endpoints[:1000], "201 Created")
    create("too-many-endpoints", endpoints, "422 Invalid")
    ports = [{"name": f"p{n}", "port": n + 1} for n in range(101)]
    create("ports", [endpoint], "201 Created", ports=ports)
    create("null", [], "201 Created", ports=None)
    create("bad-address", [{"addresses": ["x"]}], "422 Invalid")
    create("bad-type", [{"addresses": ["fe80::1"]}], "422 Invalid")


def test_evictions(api: Api) -> None:
    """An eviction is charged to the pod's budget; a pod with two budgets cannot be evicted."""
    path = f"{api.core}/pods"
    budgets = api.group("policy/v1") + "/poddisruptionbudgets"
    labels = {"app": "a"}
    for name in ("a", "b"):
        api.create(
            path,
            {"metadata": {"name": name, "labels": labels}, "spec": {**POD_SPEC, "nodeName": "n"}},
            expect="201 Created",
        )
        ready = [{"type": "Ready", "status": "True"}]
        api.patch(
            f"{path}/{name}/status",
            {"status": {"phase": "Running", "conditions": ready}},
            expect="200 OK",
        )
    api.create(
        budgets,
        {
            "metadata": {"name": "x"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        },
        expect="201 Created",
    )
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    early = api.create(f"{path}/a/eviction", body, expect="429 TooManyRequests")
    assert (early.status, early.headers["Retry-After"]) == (429, "10")
    counts = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    api.patch(
        f"{budgets}/x/status", {"status": {**counts, "observedGeneration": 1}}, expect="200 OK"
    )
    api.create(f"{path}/a/eviction", body, dryRun="All", expect="201 Created")
    api.create(f"{path}/a/eviction", body, expect="201 Created")
    api.get(f"{path}/a", expect="200 OK")
    seen = api.get(f"{budgets}/x", quiet=True).body["status"]
    assert seen["disruptionsAllowed"] == 0
    assert list(seen["disruptedPods"]) == ["a"]
    api.create(
        f"{path}/b/eviction", {**body, "metadata": {"name": "b"}}, expect="429 TooManyRequests"
    )
    api.create(
        f"{path}/none/eviction", {**body, "metadata": {"name": "none"}}, expect="404 NotFound"
    )
    api.create(
        f"{path}/b/eviction", {**body, "metadata": {"name": "other"}}, expect="400 BadRequest"
    )
    api.create(
        f"{path}/b/eviction",
        {"metadata": {"name": "b"}, "kind": "Pod", "apiVersion": "v1"},
        expect="400 BadRequest",
    )
    api.get(f"{path}/b/eviction", expect="405 MethodNotAllowed")
    api.create(
        budgets,
        {
            "metadata": {"name": "y"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        },
        expect="201 Created",
    )
    api.create(
        f"{path}/b/eviction",
        {**body, "metadata": {"name": "b"}},
        expect="500 Internal Server Error",
    )
    old = {**body, "apiVersion": "policy/v1beta1", "metadata": {"name": "b"}}
    api.create(f"{path}/b/eviction", old, expect="500 Internal Server Error")


def test_pod_subresources(api: Api) -> None:
    """Most fields of a pod cannot change; ephemeral containers have a subresource."""
    path = f"{api.core}/pods/p"
    api.create(
        f"{api.core}/pods", {"metadata": {"name": "p"}, "spec": POD_SPEC}, expect="201 Created"
    )
    debug = {"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}}
    api.patch(path, debug, "strategic", expect="422 Invalid")
    api.patch(f"{path}/ephemeralcontainers", debug, "strategic", expect="200 OK")
    api.get(f"{path}/ephemeralcontainers", expect="200 OK")
    api.patch(
        path,
        {"spec": {"containers": [{"name": "app", "image": "other:2"}]}},
        "strategic",
        expect="200 OK",
    )
    api.patch(path, {"spec": {"terminationGracePeriodSeconds": 5}}, expect="422 Invalid")
    api.patch(path, {"spec": {"activeDeadlineSeconds": 5}}, expect="200 OK")
    api.patch(path, {"spec": {"activeDeadlineSeconds": 9}}, expect="422 Invalid")
    resize = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}}
    api.patch(f"{path}/resize", resize, "strategic", expect="422 Invalid")


def test_families(api: Api) -> None:
    """A Service with two address families is refused as single stack."""
    for number, (families, expected) in enumerate(
        (
            (["IPv4"], "201 Created"),
            (["IPv4", "IPv6"], "422 Invalid"),
            (["IPv4", "IPv4"], "422 Invalid"),
        )
    ):
        spec = {
            "ports": [{"port": 80}],
            "ipFamilyPolicy": "SingleStack",
            "ipFamilies": families,
        }
        body = {"metadata": {"name": f"a{number}"}, "spec": spec}
        api.create(f"{api.core}/services", body, expect=expected)


def test_log_of_a_pod_without_a_node(api: Api) -> None:
    """The log of a pod that has no node yet is empty."""
    api.create(
        f"{api.core}/pods",
        {"metadata": {"name": "a"}, "spec": POD_SPEC},
        quiet=True,
        expect="201 Created",
    )
    answer = api.get(f"{api.core}/pods/a/log", expect="204 No Content")
    assert (answer.status, answer.text) == (204, b"")


def test_nameless(api: Api) -> None:
    """Evictions, bindings and token reviews without a name or a token are refused."""
    path = f"{api.core}/pods"
    api.create(
        path, {"metadata": {"name": "a"}, "spec": POD_SPEC}, quiet=True, expect="201 Created"
    )
    for name in ("a", "none"):
        api.create(f"{path}/{name}/eviction", {}, expect="400 BadRequest")
        api.create(f"{path}/{name}/eviction", {"metadata": {"name": "b"}}, expect="400 BadRequest")
        api.create(f"{path}/{name}/binding", {"target": {"name": "n"}}, expect="400 BadRequest")
    api.get(f"{path}/a", quiet=True, expect="200 OK")
    api.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {}}, expect="400 BadRequest")
