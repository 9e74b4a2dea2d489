"""What the default admission plugins and allocators of an API server add and refuse."""

from __future__ import annotations

import time
from typing import Any

from tests.contract.samples import BY_KIND, POD_SPEC
from tests.contract.talking import Api

Obj = dict[str, Any]


def test_pods(api: Api) -> None:
    """Pods get tolerations, a priority and a policy; a class gives others."""
    path = f"{api.core}/pods"
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.made(path, {"metadata": {"name": "plain"}, "spec": POD_SPEC})
    high = f"high-{api.ns}"
    api.made(classes, {"metadata": {"name": high}, "value": 1000, "preemptionPolicy": "Never"})
    pod = {"metadata": {"name": "high"}, "spec": {**POD_SPEC, "priorityClassName": high}}
    # A real server's admission reads classes from a store that may lag.
    deadline = time.monotonic() + 180
    while (
        api.ask("POST", f"{path}?dryRun=All", pod, quiet=True).status == 403
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    api.made(path, pod)
    cases: list[Obj] = [
        {"priorityClassName": "none"},
        {"priority": 7},
        {"priorityClassName": "system-node-critical"},
        {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]},
        {"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]},
        {"schedulingGates": [{"name": "zonewise.io/wait"}]},
        {"runtimeClassName": "none"},
        {"nodeName": "n", "schedulingGates": [{"name": "zonewise.io/wait"}]},
    ]
    for number, more in enumerate(cases):
        api.create(path, {"metadata": {"name": f"p{number}"}, "spec": {**POD_SPEC, **more}})
    api.patch(f"{path}/p5", {"spec": {"schedulingGates": None}})


def test_bindings(api: Api) -> None:
    """A pod is bound once, by its scheduler; the node's zone becomes its label."""
    labels = {"topology.kubernetes.io/zone": "z-1", "topology.kubernetes.io/region": "r-1"}
    node = f"node-{api.ns}"
    api.made("/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
    path = f"{api.core}/pods"
    for name in ("a", "b", "c", "d"):
        api.made(path, {"metadata": {"name": name}, "spec": POD_SPEC}, quiet=True)
    body = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": node}}
    assert api.create(f"{path}/a/binding", body, dryRun="All").status == 201
    assert api.create(f"{path}/a/binding", body).status == 201
    assert api.create(f"{path}/a/binding", body).status == 409
    api.get(f"{path}/a")
    api.create(f"{path}/b/binding", {**body, "metadata": {"name": "other"}})
    api.create(f"{path}/b/binding", {**body, "target": {}})
    api.create(f"{path}/b/binding", {**body, "target": {"kind": "Pod", "name": "x"}})
    noted = {"metadata": {"name": "b", "annotations": {"who": "me"}, "uid": "other"}}
    api.create(f"{path}/b/binding", {**body, **noted})
    noted["metadata"].pop("uid")
    api.create(f"{path}/b/binding", {**body, **noted})
    api.get(f"{path}/b")
    api.create(f"{api.core}/bindings", {**body, "metadata": {"name": "c"}})
    api.create(f"{path}/none/binding", {**body, "metadata": {"name": "none"}})
    api.patch(f"{path}/d", {"spec": {"nodeName": node}})
    gated = {**POD_SPEC, "schedulingGates": [{"name": "zonewise.io/wait"}]}
    api.made(path, {"metadata": {"name": "g"}, "spec": gated}, quiet=True)
    api.create(f"{path}/g/binding", {**body, "metadata": {"name": "g"}})


def test_nodes_and_volumes(api: Api) -> None:
    """New nodes are tainted until they are ready; volumes and claims are protected."""
    nodes = "/api/v1/nodes"
    api.made(nodes, {"metadata": {"name": f"a-{api.ns}"}})
    taint = {"key": "mine", "effect": "NoSchedule"}
    api.made(nodes, {"metadata": {"name": f"b-{api.ns}"}, "spec": {"taints": [taint]}})
    claims = f"{api.core}/persistentvolumeclaims"
    made = api.made(claims, {"metadata": {"name": "c"}, **BY_KIND["PersistentVolumeClaim"].fields})
    assert made.meta["finalizers"] == ["kubernetes.io/pvc-protection"]
    volume = {"metadata": {"name": f"v-{api.ns}"}, **BY_KIND["PersistentVolume"].fields}
    made = api.made("/api/v1/persistentvolumes", volume)
    assert made.meta["finalizers"] == ["kubernetes.io/pv-protection"]
    api.patch(f"{claims}/c", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    api.patch(f"{claims}/c", {"spec": {"accessModes": ["ReadOnlyMany"]}})


def test_default_storage_class(api: Api) -> None:
    """A claim without a class gets the default one, if there is any."""
    name = f"std-{api.ns}"
    mark = {"storageclass.kubernetes.io/is-default-class": "true"}
    path = "/apis/storage.k8s.io/v1/storageclasses"
    meta = {"name": name, "annotations": mark}
    api.made(path, {"metadata": meta, "provisioner": "disk.example"})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"{api.core}/persistentvolumeclaims"
    body = {"metadata": {"name": "a"}, "spec": spec}
    made = api.create(claims, body, quiet=True)
    while made.body["spec"].get("storageClassName") != name:  # the plugin's cache may be behind
        made = api.create(claims, body, dryRun="All", quiet=True)
        if made.status == 409:
            api.patch(f"{claims}/a", {"metadata": {"finalizers": None}}, quiet=True)
            api.delete(f"{claims}/a", quiet=True)
            made = api.create(claims, body, quiet=True)
    assert made.body["spec"]["storageClassName"] == name
    assert api.delete(f"{path}/{name}").body["kind"] == "StorageClass"


def test_services(api: Api) -> None:
    """Addresses and node ports are allocated, unique, and free again after deletion."""
    path = f"{api.core}/services"
    port = {"port": 80}

    def service(name: str, **spec: Any) -> Obj:
        return {"metadata": {"name": name}, "spec": {"ports": [port], **spec}}

    first = api.made(path, service("a", selector={"a": "b"}))
    address = first.body["spec"]["clusterIP"]
    taken = api.create(path, service("b", clusterIP=address))
    assert taken.status == 422
    api.delete(f"{path}/a")
    assert api.made(path, service("b", clusterIP=address)).body["spec"]["clusterIP"] == address
    api.made(path, service("headless", clusterIP="None", selector={"a": "b"}))
    lonely = api.made(path, service("lonely", clusterIP="None"))
    assert lonely.body["spec"]["ipFamilyPolicy"] == "RequireDualStack"
    node = api.made(path, service("node", type="NodePort"))
    number = node.body["spec"]["ports"][0]["nodePort"]
    again = service("again", type="NodePort")
    again["spec"]["ports"] = [{"port": 80, "nodePort": number}]
    assert api.create(path, again).status == 422
    api.create(path, service("out", clusterIP="192.0.2.1"))
    api.create(path, service("name", type="ExternalName", externalName="x.example"))
    api.made(path, service("lb", type="LoadBalancer", externalTrafficPolicy="Local"))
    api.patch(f"{path}/node", {"spec": {"type": "ClusterIP"}})
    api.patch(f"{path}/node", {"spec": {"type": "ExternalName", "externalName": "y.example"}})
    api.patch(f"{path}/b", {"spec": {"clusterIP": "None"}})
    api.patch(f"{path}/b", {"spec": {"clusterIP": None}})
    api.create(path, service("dry", type="NodePort"), dryRun="All")
    api.patch(f"{path}/b/status", {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}})


def test_slices(api: Api) -> None:
    """EndpointSlices have limits; one more of anything is too many."""
    path = api.group("discovery.k8s.io/v1") + "/endpointslices"

    def tried(name: str, endpoints: list[Obj], **more: Any) -> int:
        body = {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints, **more}
        answer = api.create(path, body, quiet=True)
        api.note(name, [answer.status, answer.causes if answer.status >= 400 else []])
        return answer.status

    zones = [{"name": f"z{number}"} for number in range(9)]
    one = {"addresses": ["10.0.0.1"]}
    assert tried("zones", [{**one, "hints": {"forZones": zones[:8]}}]) == 201
    assert tried("too-many-zones", [{**one, "hints": {"forZones": zones}}]) == 422
    assert tried("twice", [{**one, "hints": {"forZones": [zones[0], zones[0]]}}]) == 422
    many = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(1001)]
    assert tried("addresses", [{"addresses": many[:100]}]) == 201
    assert tried("too-many-addresses", [{"addresses": many[:101]}]) == 422
    assert tried("endpoints", [{"addresses": [text]} for text in many[:1000]]) == 201
    assert tried("too-many-endpoints", [{"addresses": [text]} for text in many]) == 422
    ports = [{"name": f"p{n}", "port": n + 1} for n in range(101)]
    tried("ports", [one], ports=ports)
    tried("null", [], ports=None)
    tried("bad-address", [{"addresses": ["x"]}])
    tried("bad-type", [{"addresses": ["fe80::1"]}])


def test_evictions(api: Api) -> None:
    """Evictions ask budgets, which count down; too many budgets are one too many."""
    path = f"{api.core}/pods"
    budgets = api.group("policy/v1") + "/poddisruptionbudgets"
    labels = {"app": "a"}
    for name in ("a", "b"):
        api.made(
            path,
            {"metadata": {"name": name, "labels": labels}, "spec": {**POD_SPEC, "nodeName": "n"}},
        )
        ready = [{"type": "Ready", "status": "True"}]
        api.patch(f"{path}/{name}/status", {"status": {"phase": "Running", "conditions": ready}})
    api.made(
        budgets,
        {
            "metadata": {"name": "x"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        },
    )
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    early = api.create(f"{path}/a/eviction", body)
    assert (early.status, early.headers["Retry-After"]) == (429, "10")
    counts = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    api.patch(f"{budgets}/x/status", {"status": {**counts, "observedGeneration": 1}})
    assert api.create(f"{path}/a/eviction", body, dryRun="All").status == 201
    assert api.create(f"{path}/a/eviction", body).status == 201
    api.get(f"{path}/a")
    seen = api.get(f"{budgets}/x", quiet=True).body["status"]
    assert seen["disruptionsAllowed"] == 0
    assert list(seen["disruptedPods"]) == ["a"]
    assert api.create(f"{path}/b/eviction", {**body, "metadata": {"name": "b"}}).status == 429
    api.create(f"{path}/none/eviction", {**body, "metadata": {"name": "none"}})
    api.create(f"{path}/b/eviction", {**body, "metadata": {"name": "other"}})
    api.create(f"{path}/b/eviction", {"metadata": {"name": "b"}, "kind": "Pod", "apiVersion": "v1"})
    api.get(f"{path}/b/eviction")
    api.made(
        budgets,
        {
            "metadata": {"name": "y"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        },
    )
    assert api.create(f"{path}/b/eviction", {**body, "metadata": {"name": "b"}}).status == 500
    old = {**body, "apiVersion": "policy/v1beta1", "metadata": {"name": "b"}}
    api.create(f"{path}/b/eviction", old)


def test_pod_subresources(api: Api) -> None:
    """What needs a kubelet is elsewhere; ephemeral containers are added apart."""
    path = f"{api.core}/pods/p"
    api.made(f"{api.core}/pods", {"metadata": {"name": "p"}, "spec": POD_SPEC})
    debug = {"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}}
    api.patch(path, debug, "strategic")
    api.patch(f"{path}/ephemeralcontainers", debug, "strategic")
    api.get(f"{path}/ephemeralcontainers")
    api.patch(path, {"spec": {"containers": [{"name": "app", "image": "other:2"}]}}, "strategic")
    api.patch(path, {"spec": {"terminationGracePeriodSeconds": 5}})
    api.patch(path, {"spec": {"activeDeadlineSeconds": 5}})
    api.patch(path, {"spec": {"activeDeadlineSeconds": 9}})
    resize = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}}
    api.patch(f"{path}/resize", resize, "strategic")


def test_families(api: Api) -> None:
    """Two families are no single stack."""
    for number, families in enumerate((["IPv4"], ["IPv4", "IPv6"], ["IPv4", "IPv4"])):
        spec = {
            "ports": [{"port": 80}],
            "ipFamilyPolicy": "SingleStack",
            "ipFamilies": families,
        }
        api.create(f"{api.core}/services", {"metadata": {"name": f"a{number}"}, "spec": spec})


def test_log_of_a_pod_without_a_node(api: Api) -> None:
    """It is empty: nothing runs yet."""
    api.made(f"{api.core}/pods", {"metadata": {"name": "a"}, "spec": POD_SPEC}, quiet=True)
    answer = api.get(f"{api.core}/pods/a/log")
    assert (answer.status, answer.text) == (204, b"")


def test_nameless(api: Api) -> None:
    """An eviction and a binding say whose they are, and so does who asks about a token."""
    path = f"{api.core}/pods"
    api.made(path, {"metadata": {"name": "a"}, "spec": POD_SPEC}, quiet=True)
    for name in ("a", "none"):
        api.create(f"{path}/{name}/eviction", {})
        api.create(f"{path}/{name}/eviction", {"metadata": {"name": "b"}})
        api.create(f"{path}/{name}/binding", {"target": {"name": "n"}})
    assert api.get(f"{path}/a", quiet=True).status == 200
    api.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {}})
