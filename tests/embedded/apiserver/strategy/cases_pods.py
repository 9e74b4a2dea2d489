"""Pods that were sent to a real API server: each is a valid pod with a few edits."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.cases import GONE, Case, any_of, change, create

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"app": "a"}},
    "spec": {"containers": [{"name": "c", "image": "busybox"}]},
}
C = "spec.containers.0"
PROBE = {"httpGet": {"path": "/", "port": 80}}
EMPTY = {"name": "v", "emptyDir": {}}


def pod(label: str, edits: dict[str, Any]) -> Case:
    """A pod to create."""
    return create("/api/v1/namespaces/{ns}/pods", f"pod {label}", POD, edits)


def repod(
    label: str,
    edits: dict[str, Any],
    *,
    first: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    part: str = "",
) -> Case:
    """A pod to change."""
    return change(
        "/api/v1/namespaces/{ns}/pods",
        f"pod update {label}",
        POD,
        edits,
        first=first,
        status=status,
        part=part,
    )


def volume(**source: Any) -> dict[str, Any]:
    """Edits that give the pod one volume."""
    return {"spec.volumes": [{"name": "v", **source}]}


def claim_template(**spec: Any) -> dict[str, Any]:
    """An ephemeral volume."""
    good = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"volumeClaimTemplate": {"spec": {**good, **spec}}}


def affinity(kind: str, when: str, value: Any) -> dict[str, Any]:
    """Edits that give the pod one affinity."""
    name = f"{when}DuringSchedulingIgnoredDuringExecution"
    return {f"spec.affinity.{kind}.{name}": value}


def expression(**parts: Any) -> dict[str, Any]:
    """A node selector with one expression."""
    return {"nodeSelectorTerms": [{"matchExpressions": [parts]}]}


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "a"}},
}

CREATES: list[Case] = [
    pod("good", {}),
    pod("no containers", {"spec.containers": []}),
    pod("no spec", {"spec": GONE}),
    pod("empty spec", {"spec": {}}),
    pod("null containers", {"spec.containers": None}),
    pod("no container name", {f"{C}.name": GONE}),
    pod("no image", {f"{C}.image": GONE}),
    pod("empty image", {f"{C}.image": ""}),
    pod("image with spaces", {f"{C}.image": " busybox "}),
    pod("image in the middle spaced", {f"{C}.image": "busy box"}),
    pod("bad container name", {f"{C}.name": "Bad_Name"}),
    pod("long container name", {f"{C}.name": "c" * 64}),
    pod("bad pod name", {"metadata.name": "Bad_Pod"}),
    pod("long pod name", {"metadata.name": "p" * 254}),
    pod("dotted pod name", {"metadata.name": "a.b.c"}),
    pod("no pod name", {"metadata.name": GONE}),
    pod("bad label key", {"metadata.labels": {"a b": "c"}}),
    pod("bad label value", {"metadata.labels": {"a": "c d"}}),
    pod("bad annotation key", {"metadata.annotations": {"a b": "c"}}),
    pod("two containers same name", {"spec.containers.1": {"name": "c", "image": "x"}}),
    pod("init same name", {"spec.initContainers": [{"name": "c", "image": "x"}]}),
    pod("init twice", {"spec.initContainers": [{"name": "i", "image": "x"}] * 2}),
    pod("init no image", {"spec.initContainers": [{"name": "i"}]}),
    pod("init spaced image", {"spec.initContainers": [{"name": "i", "image": "a "}]}),
    pod(
        "init with probes",
        {
            "spec.initContainers": [
                {
                    "name": "i",
                    "image": "x",
                    "livenessProbe": PROBE,
                    "readinessProbe": PROBE,
                    "startupProbe": PROBE,
                    "lifecycle": {"preStop": {"exec": {"command": ["a"]}}},
                }
            ]
        },
    ),
    pod(
        "sidecar with probes",
        {
            "spec.initContainers": [
                {
                    "name": "i",
                    "image": "x",
                    "restartPolicy": "Always",
                    "livenessProbe": PROBE,
                    "lifecycle": {"preStop": {"exec": {"command": ["a"]}}},
                }
            ]
        },
    ),
    pod(
        "init restart Never",
        {"spec.initContainers": [{"name": "i", "image": "x", "restartPolicy": "Never"}]},
    ),
    pod(
        "init restart bad",
        {"spec.initContainers": [{"name": "i", "image": "x", "restartPolicy": "Sometimes"}]},
    ),
    pod("container restartPolicy", {f"{C}.restartPolicy": "Always"}),
    pod("container restartPolicy bad", {f"{C}.restartPolicy": "Bad"}),
    pod(
        "container restart rules without policy",
        {
            f"{C}.restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}
            ]
        },
    ),
    pod(
        "container restart rules bad",
        {
            f"{C}.restartPolicy": "Never",
            f"{C}.restartPolicyRules": [
                {"action": "Foo", "exitCodes": {"operator": "Bar", "values": [1]}},
                {"action": "Restart"},
            ],
        },
    ),
    pod(
        "container restart rules good",
        {
            f"{C}.restartPolicy": "Never",
            f"{C}.restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
            ],
        },
    ),
    # ports
    pod("port zero", {f"{C}.ports": [{"containerPort": 0}]}),
    pod("port missing", {f"{C}.ports": [{"name": "a"}]}),
    pod("port too big", {f"{C}.ports": [{"containerPort": 65536}]}),
    pod("port negative", {f"{C}.ports": [{"containerPort": -1}]}),
    pod("port protocol", {f"{C}.ports": [{"containerPort": 80, "protocol": "tcp"}]}),
    pod("port protocol empty", {f"{C}.ports": [{"containerPort": 80, "protocol": ""}]}),
    pod("port name caps", {f"{C}.ports": [{"containerPort": 80, "name": "HTTP"}]}),
    pod("port name long", {f"{C}.ports": [{"containerPort": 80, "name": "a" * 16}]}),
    pod("port name digits", {f"{C}.ports": [{"containerPort": 80, "name": "123"}]}),
    pod("port name dashes", {f"{C}.ports": [{"containerPort": 80, "name": "-a--b-"}]}),
    pod(
        "port names twice",
        {f"{C}.ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]},
    ),
    pod("ports twice", {f"{C}.ports": [{"containerPort": 80}, {"containerPort": 80}]}),
    pod("hostPort too big", {f"{C}.ports": [{"containerPort": 80, "hostPort": 70000}]}),
    pod(
        "hostPort twice",
        {
            f"{C}.ports": [
                {"containerPort": 80, "hostPort": 80},
                {"containerPort": 81, "hostPort": 80},
            ]
        },
    ),
    pod(
        "hostPort twice in two containers",
        {
            f"{C}.ports": [{"containerPort": 80, "hostPort": 80}],
            "spec.containers.1": {
                "name": "d",
                "image": "x",
                "ports": [{"containerPort": 80, "hostPort": 80}],
            },
        },
    ),
    pod(
        "hostPort twice, other protocol",
        {
            f"{C}.ports": [
                {"containerPort": 80, "hostPort": 80},
                {"containerPort": 81, "hostPort": 80, "protocol": "UDP"},
            ]
        },
    ),
    pod(
        "hostNetwork ports default",
        {"spec.hostNetwork": True, f"{C}.ports": [{"containerPort": 80}]},
    ),
    pod(
        "hostNetwork ports differ",
        {"spec.hostNetwork": True, f"{C}.ports": [{"containerPort": 80, "hostPort": 81}]},
    ),
    # env
    pod("env no name", {f"{C}.env": [{"value": "x"}]}),
    pod("env odd name", {f"{C}.env": [{"name": "a.b-c d", "value": "x"}]}),
    pod("env equals in name", {f"{C}.env": [{"name": "a=b", "value": "x"}]}),
    pod("env umlaut", {f"{C}.env": [{"name": "ä", "value": "x"}]}),
    pod("env empty valueFrom", {f"{C}.env": [{"name": "a", "valueFrom": {}}]}),
    pod(
        "env value and valueFrom",
        {
            f"{C}.env": [
                {
                    "name": "a",
                    "value": "b",
                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                }
            ]
        },
    ),
    pod(
        "env two sources",
        {
            f"{C}.env": [
                {
                    "name": "a",
                    "valueFrom": {
                        "fieldRef": {"fieldPath": "metadata.name"},
                        "secretKeyRef": {"name": "s", "key": "k"},
                    },
                }
            ]
        },
    ),
    *(
        pod(
            f"env fieldPath {path}",
            {f"{C}.env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": path}}}]},
        )
        for path in (
            "",
            "metadata.whatever",
            "metadata.labels",
            "metadata.labels['a']",
            "metadata.labels['a b']",
            "metadata.annotations['A']",
            "spec.nodeName",
            "spec.restartPolicy",
            "status.phase",
            "status.podIPs",
            "spec.foo['a']",
        )
    ),
    pod(
        "env fieldRef version",
        {
            f"{C}.env": [
                {
                    "name": "a",
                    "valueFrom": {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}},
                }
            ]
        },
    ),
    *(
        pod(
            f"env resourceFieldRef {reference}",
            {f"{C}.env": [{"name": "a", "valueFrom": {"resourceFieldRef": reference}}]},
        )
        for reference in (
            {"resource": ""},
            {"resource": "limits.cpu"},
            {"resource": "limits.foo"},
            {"resource": "limits.cpu", "divisor": "2"},
            {"resource": "limits.memory", "divisor": "1Mi"},
            {"resource": "limits.memory", "divisor": "3Mi"},
            {"resource": "limits.hugepages-2Mi", "divisor": "1Mi"},
        )
    ),
    *(
        pod(
            f"env {kind} {reference}",
            {f"{C}.env": [{"name": "a", "valueFrom": {kind: reference}}]},
        )
        for kind in ("secretKeyRef", "configMapKeyRef")
        for reference in (
            {"name": "s", "key": "k"},
            {"name": "", "key": "k"},
            {"name": "S", "key": "k"},
            {"name": "s", "key": ""},
            {"name": "s", "key": "a b"},
            {"name": "s", "key": ".."},
            {"name": "s", "key": "k" * 254},
        )
    ),
    *(
        pod(f"envFrom {source}", {f"{C}.envFrom": [source]})
        for source in any_of(
            {},
            {"prefix": "a=b", "configMapRef": {"name": "c"}},
            {"prefix": "1", "configMapRef": {"name": "c"}},
            {"configMapRef": {}},
            {"configMapRef": {"name": "C"}},
            {"secretRef": {"name": "a-"}},
            {"secretRef": {"name": "s"}, "configMapRef": {"name": "c"}},
        )
    ),
    # resources
    *(
        pod(f"resources {resources}", {f"{C}.resources": resources})
        for resources in (
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}},
            {"requests": {"cpu": "1000m"}, "limits": {"cpu": "1"}},
            {"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}},
            {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
            {"requests": {"cpu": "-1"}},
            {"limits": {"cpu": "-1", "memory": "-1"}},
            {"limits": {"cpu": "1x"}},
            {"limits": {"cpu": ""}},
            {"limits": {"cpu": 1}},
            {"limits": {"cpu": 0.5}},
            {"limits": {"foo": "1"}},
            {"requests": {"foo": "1"}},
            {"requests": {"storage": "1Gi"}},
            {"requests": {"pods": "1.5"}},
            {"limits": {"a b": "1"}},
            {"limits": {"example.com/gpu": "1"}},
            {"limits": {"example.com/gpu": "1500m"}},
            {"requests": {"example.com/gpu": "1"}},
            {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "2"}},
            {"limits": {"kubernetes.io/foo": "1"}},
            {"limits": {"requests.example.com/foo": "1"}},
            {"limits": {"hugepages-2Mi": "4Mi"}},
            {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}},
            {"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}},
            {"requests": {"hugepages-2Mi": "4Mi", "cpu": "1"}},
            {
                "requests": {"hugepages-2Mi": "2Mi", "cpu": "1"},
                "limits": {"hugepages-2Mi": "4Mi"},
            },
            {"limits": {"ephemeral-storage": "1Gi"}},
            {"claims": [{"name": "x"}]},
        )
    ),
    pod("pod resources good", {"spec.resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
    pod(
        "pod resources less than container",
        {
            "spec.resources": {"requests": {"cpu": "1"}},
            f"{C}.resources": {"requests": {"cpu": "2"}},
        },
    ),
    pod(
        "pod resources limit less than container",
        {"spec.resources": {"limits": {"cpu": "1"}}, f"{C}.resources": {"limits": {"cpu": "2"}}},
    ),
    pod("pod resources unknown", {"spec.resources": {"limits": {"ephemeral-storage": "1Gi"}}}),
    pod("overhead without class", {"spec.overhead": {"cpu": "1"}}),
    pod(
        "resizePolicy",
        {f"{C}.resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]},
    ),
    pod(
        "resizePolicy bad", {f"{C}.resizePolicy": [{"resourceName": "foo", "restartPolicy": "Bar"}]}
    ),
    pod(
        "resizePolicy twice",
        {f"{C}.resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2},
    ),
    pod(
        "resizePolicy restart Never",
        {
            f"{C}.resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
            "spec.restartPolicy": "Never",
        },
    ),
    # probes
    *(
        pod(f"livenessProbe {probe}", {f"{C}.livenessProbe": probe})
        for probe in any_of(
            PROBE,
            {},
            {"httpGet": {"path": "/", "port": 80}, "exec": {"command": ["a"]}},
            {"exec": {}},
            {"exec": {"command": []}},
            {"httpGet": {"path": "/", "port": 0}},
            {"httpGet": {"path": "/", "port": 70000}},
            {"httpGet": {"path": "/", "port": "http"}},
            {"httpGet": {"path": "/", "port": "HTTP_X"}},
            {"httpGet": {"port": 80}},
            {"httpGet": {"path": "/"}},
            {"httpGet": {"path": "/", "port": 80, "scheme": "http"}},
            {"httpGet": {"path": "/", "port": 80, "httpHeaders": [{"name": "a b", "value": "c"}]}},
            {"tcpSocket": {"port": 0}},
            {"tcpSocket": {"port": "x"}},
            {"grpc": {"port": 0}},
            {"grpc": {"port": 80}},
            {**PROBE, "initialDelaySeconds": -1, "timeoutSeconds": -1, "periodSeconds": -1},
            {**PROBE, "successThreshold": 2},
            {**PROBE, "successThreshold": -1, "failureThreshold": -1},
            {**PROBE, "terminationGracePeriodSeconds": 0},
            {**PROBE, "terminationGracePeriodSeconds": 5},
        )
    ),
    pod("readinessProbe threshold", {f"{C}.readinessProbe": {**PROBE, "successThreshold": 2}}),
    pod(
        "readinessProbe grace",
        {f"{C}.readinessProbe": {**PROBE, "terminationGracePeriodSeconds": 5}},
    ),
    pod("startupProbe threshold", {f"{C}.startupProbe": {**PROBE, "successThreshold": 2}}),
    *(
        pod(f"lifecycle {hooks}", {f"{C}.lifecycle": hooks})
        for hooks in any_of(
            {},
            {"preStop": {}},
            {"preStop": {"sleep": {"seconds": 5}}},
            {"preStop": {"sleep": {"seconds": 50}}},
            {"preStop": {"sleep": {"seconds": -1}}},
            {"preStop": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 80}}},
            {"postStart": {"httpGet": {"path": "/", "port": 80}}},
        )
    ),
    pod("imagePullPolicy", {f"{C}.imagePullPolicy": "Sometimes"}),
    pod("terminationMessagePolicy", {f"{C}.terminationMessagePolicy": "Foo"}),
    # volumes
    *(
        pod(f"volume {source}", volume(**source))
        for source in any_of(
            {"emptyDir": {}},
            {},
            {"emptyDir": {}, "hostPath": {"path": "/a"}},
            {"emptyDir": {"sizeLimit": "-1Gi"}},
            {"emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
            {"emptyDir": {"medium": "Foo"}},
            {"hostPath": {"path": ""}},
            {"hostPath": {"path": "/a/../b"}},
            {"hostPath": {"path": "/a", "type": "Foo"}},
            {"hostPath": {"path": "/a", "type": "Directory"}},
            {"secret": {}},
            {"secret": {"secretName": "s", "defaultMode": 512}},
            {"secret": {"secretName": "s", "items": [{"key": "", "path": "../a"}]}},
            {"secret": {"secretName": "s", "items": [{"key": "k", "path": "/a", "mode": -1}]}},
            {"secret": {"secretName": "s", "items": [{"key": "k", "path": "..a"}]}},
            {"configMap": {}},
            {"configMap": {"name": "c", "items": [{"key": "k"}]}},
            {"configMap": {"name": "c"}, "secret": {"secretName": "s"}},
            {"persistentVolumeClaim": {}},
            {"persistentVolumeClaim": {"claimName": "c"}},
            {"nfs": {"server": "", "path": ""}},
            {"nfs": {"server": "a", "path": "b"}},
            {"downwardAPI": {"items": [{"path": "a"}]}},
            {
                "downwardAPI": {
                    "items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.labels"}}]
                }
            },
            {"downwardAPI": {"items": [{"path": "", "fieldRef": {"fieldPath": "spec.nodeName"}}]}},
            {
                "downwardAPI": {
                    "items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]
                }
            },
            {"projected": {"sources": [{}]}},
            {"projected": {"sources": [{"secret": {"name": ""}}]}},
            {"projected": {"sources": [{"secret": {"name": "a"}, "configMap": {"name": "b"}}]}},
            {"projected": {"sources": [{"serviceAccountToken": {"expirationSeconds": 1}}]}},
            {
                "projected": {
                    "sources": [
                        {"secret": {"name": "a", "items": [{"key": "k", "path": "x"}]}},
                        {"configMap": {"name": "b", "items": [{"key": "k", "path": "x"}]}},
                    ]
                }
            },
            {"csi": {"driver": ""}},
            {"csi": {"driver": "a b"}},
            {"csi": {"driver": "x.example.com", "nodePublishSecretRef": {"name": ""}}},
            {"ephemeral": {}},
            {"ephemeral": claim_template()},
            {"ephemeral": claim_template(accessModes=[])},
            {"ephemeral": claim_template(accessModes=["Foo"], resources={})},
            {"ephemeral": claim_template(accessModes=["ReadWriteOncePod", "ReadWriteOnce"])},
            {"ephemeral": claim_template(resources={"requests": {"storage": "0"}})},
            {"ephemeral": claim_template(storageClassName="A B", volumeMode="Foo")},
            {"gitRepo": {"repository": "", "directory": "../a"}},
            {"iscsi": {"targetPortal": "", "iqn": "", "lun": 0}},
            {"image": {"reference": ""}},
            {"image": {"reference": "a:b", "pullPolicy": "Foo"}},
        )
    ),
    pod("volume no name", {"spec.volumes": [{"emptyDir": {}}]}),
    pod("volume bad name", {"spec.volumes": [{"name": "A_b", "emptyDir": {}}]}),
    pod("volume twice", {"spec.volumes": [EMPTY, EMPTY]}),
    pod("mount missing volume", {f"{C}.volumeMounts": [{"name": "v", "mountPath": "/a"}]}),
    pod(
        "mount of a bad volume",
        {
            "spec.volumes": [{"name": "v"}],
            f"{C}.volumeMounts": [{"name": "v", "mountPath": "/a"}],
        },
    ),
    *(
        pod(f"mounts {mounts}", {"spec.volumes": [EMPTY], f"{C}.volumeMounts": mounts})
        for mounts in (
            [{"name": "v", "mountPath": "/a"}],
            [{"name": "", "mountPath": "/a"}],
            [{"name": "v"}],
            [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}],
            [{"name": "v", "mountPath": "/a", "subPath": "/x"}],
            [{"name": "v", "mountPath": "/a", "subPath": "x/../y"}],
            [{"name": "v", "mountPath": "/a", "subPath": "x", "subPathExpr": "$(A)"}],
            [{"name": "v", "mountPath": "/a", "mountPropagation": "Foo"}],
            [{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}],
            [{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled"}],
            [{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Foo"}],
            [{"name": "v", "mountPath": "a:b"}],
        )
    ),
    *(
        pod(
            f"devices {devices}",
            {
                "spec.volumes": [EMPTY, {"name": "w", "persistentVolumeClaim": {"claimName": "c"}}],
                f"{C}.volumeDevices": devices,
                f"{C}.volumeMounts": [{"name": "v", "mountPath": "/a"}],
            },
        )
        for devices in (
            [{"name": "w", "devicePath": "/dev/x"}],
            [{"name": "v", "devicePath": "/dev/x"}],
            [{"name": "nope", "devicePath": "/dev/x"}],
            [{"name": "w", "devicePath": ""}],
            [{"name": "w", "devicePath": "/a"}],
            [{"name": "w", "devicePath": "/dev/../x"}],
            [{"name": "w", "devicePath": "/x"}, {"name": "w", "devicePath": "/x"}],
        )
    ),
    # spec fields
    pod("restartPolicy bad", {"spec.restartPolicy": "Sometimes"}),
    pod("restartPolicy empty", {"spec.restartPolicy": ""}),
    pod("dnsPolicy bad", {"spec.dnsPolicy": "Foo"}),
    pod("dnsPolicy None", {"spec.dnsPolicy": "None"}),
    pod("dnsPolicy None without servers", {"spec.dnsPolicy": "None", "spec.dnsConfig": {}}),
    pod(
        "dnsPolicy None good",
        {"spec.dnsPolicy": "None", "spec.dnsConfig": {"nameservers": ["1.2.3.4"]}},
    ),
    *(
        pod(f"dnsConfig {config}", {"spec.dnsConfig": config})
        for config in (
            {"nameservers": ["1.2.3.4", "1.2.3.5", "1.2.3.6", "1.2.3.7"]},
            {"nameservers": ["foo"]},
            {"nameservers": ["010.1.2.3"]},
            {"searches": ["a b"]},
            {"searches": ["_a.b."]},
            {"searches": ["."]},
            {"searches": ["a"] * 33},
            {"searches": ["a" * 250] * 9},
            {"options": [{"name": ""}, {"value": "x"}]},
        )
    ),
    pod("nodeSelector bad", {"spec.nodeSelector": {"a b": "c d"}}),
    pod("terminationGracePeriodSeconds negative", {"spec.terminationGracePeriodSeconds": -1}),
    pod("terminationGracePeriodSeconds 0", {"spec.terminationGracePeriodSeconds": 0}),
    pod("activeDeadlineSeconds 0", {"spec.activeDeadlineSeconds": 0}),
    pod("activeDeadlineSeconds huge", {"spec.activeDeadlineSeconds": 2**31}),
    pod("activeDeadlineSeconds good", {"spec.activeDeadlineSeconds": 5}),
    pod("serviceAccountName unknown", {"spec.serviceAccountName": "nope"}),
    pod("serviceAccountName bad", {"spec.serviceAccountName": "A_b"}),
    pod("serviceAccount only", {"spec.serviceAccount": "default"}),
    pod("nodeName bad", {"spec.nodeName": "A_b"}),
    pod("nodeName good", {"spec.nodeName": "n1"}),
    pod("hostname bad", {"spec.hostname": "a.b", "spec.subdomain": "A"}),
    pod("hostnameOverride", {"spec.hostnameOverride": "a.b"}),
    pod("hostnameOverride bad", {"spec.hostnameOverride": "A_b", "spec.hostNetwork": True}),
    pod("priority", {"spec.priority": 5}),
    pod("priority zero", {"spec.priority": 0}),
    pod("priorityClassName unknown", {"spec.priorityClassName": "nope"}),
    pod("priorityClassName system", {"spec.priorityClassName": "system-node-critical"}),
    pod("preemptionPolicy bad", {"spec.preemptionPolicy": "Foo"}),
    pod("preemptionPolicy Never", {"spec.preemptionPolicy": "Never"}),
    pod("runtimeClassName unknown", {"spec.runtimeClassName": "nope"}),
    pod("schedulerName", {"spec.schedulerName": "mine"}),
    pod("hostAliases bad", {"spec.hostAliases": [{"ip": "x", "hostnames": ["A_b"]}]}),
    pod("hostAliases good", {"spec.hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a.b"]}]}),
    pod("hostAliases no ip", {"spec.hostAliases": [{"hostnames": ["a"]}]}),
    pod("readinessGates bad", {"spec.readinessGates": [{"conditionType": "a b"}, {}]}),
    pod("readinessGates good", {"spec.readinessGates": [{"conditionType": "example.com/a"}]}),
    pod("schedulingGates bad", {"spec.schedulingGates": [{"name": "a b"}, {"name": ""}]}),
    pod("schedulingGates twice", {"spec.schedulingGates": [{"name": "a"}, {"name": "a"}]}),
    pod("schedulingGates good", {"spec.schedulingGates": [{"name": "example.com/a"}]}),
    pod("schedulingGates bound", {"spec.schedulingGates": [{"name": "a"}], "spec.nodeName": "n"}),
    pod("ephemeralContainers", {"spec.ephemeralContainers": [{"name": "e", "image": "x"}]}),
    pod("imagePullSecrets", {"spec.imagePullSecrets": [{"name": "s"}]}),
    pod("os bad", {"spec.os": {"name": "plan9"}}),
    pod("os empty", {"spec.os": {"name": ""}}),
    pod(
        "os windows unfit",
        {"spec.os": {"name": "windows"}, "spec.securityContext": {"runAsUser": 1}},
    ),
    pod(
        "hostUsers false with host",
        {
            "spec.hostUsers": False,
            "spec.hostNetwork": True,
            "spec.hostPID": True,
            "spec.hostIPC": True,
        },
    ),
    pod(
        "shareProcessNamespace and hostPID",
        {"spec.hostPID": True, "spec.shareProcessNamespace": True},
    ),
    pod(
        "resourceClaims bad",
        {
            "spec.resourceClaims": [
                {"name": ""},
                {"name": "A"},
                {"name": "b", "resourceClaimName": "B", "resourceClaimTemplateName": "c"},
            ]
        },
    ),
    # tolerations
    *(
        pod(f"toleration {toleration}", {"spec.tolerations": [toleration]})
        for toleration in (
            {},
            {"operator": "Exists"},
            {"key": "a", "operator": "Foo"},
            {"key": "a", "operator": "Exists", "value": "b"},
            {"key": "a b", "operator": "Exists"},
            {"key": "a", "value": "b c"},
            {"key": "a", "effect": "Foo"},
            {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5},
            {"key": "a", "effect": "NoExecute", "tolerationSeconds": 5},
            {"key": "a", "tolerationSeconds": 5},
            {"key": "a", "operator": "Gt", "value": "5"},
            {"operator": "Equal", "value": "a"},
            {"operator": "Exists", "effect": "NoExecute"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
        )
    ),
    # affinity
    *(
        pod(f"node affinity {value}", affinity("nodeAffinity", "required", value))
        for value in any_of(
            {},
            {"nodeSelectorTerms": []},
            {"nodeSelectorTerms": [{}]},
            expression(key="a", operator="In", values=["b"]),
            expression(key="a", operator="In"),
            expression(key="a", operator="Exists", values=["b"]),
            expression(key="a", operator="Foo", values=["b"]),
            expression(key="a b", operator="Exists"),
            expression(key="a", operator="Gt", values=["1", "2"]),
            expression(key="a", operator="Gt", values=["x"]),
            expression(key="a", operator="In", values=["b c"]),
            {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "a", "operator": "In", "values": ["b"]}]}
                ]
            },
            {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}
                ]
            },
            {
                "nodeSelectorTerms": [
                    {
                        "matchFields": [
                            {"key": "metadata.name", "operator": "In", "values": ["a", "B_"]}
                        ]
                    }
                ]
            },
        )
    ),
    *(
        pod(f"preferred node affinity {value}", affinity("nodeAffinity", "preferred", [value]))
        for value in any_of(
            {"weight": 0, "preference": {}},
            {"weight": 101, "preference": {}},
            {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Foo"}]}},
            {
                "weight": 1,
                "preference": {
                    "matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]
                },
            },
        )
    ),
    *(
        pod(f"{kind} {value}", affinity(kind, "required", [value]))
        for kind in ("podAffinity", "podAntiAffinity")
        for value in any_of(
            {"topologyKey": "zone"},
            {},
            {"topologyKey": "a b"},
            {"topologyKey": "zone", "namespaces": ["A_b"]},
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a b": "c"}}},
            {
                "topologyKey": "zone",
                "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Foo"}]},
            },
            {
                "topologyKey": "zone",
                "namespaceSelector": {
                    "matchExpressions": [{"key": "a", "operator": "In", "values": []}]
                },
            },
            {"topologyKey": "zone", "matchLabelKeys": ["app"]},
            {
                "topologyKey": "zone",
                "labelSelector": {},
                "matchLabelKeys": ["app"],
                "mismatchLabelKeys": ["x"],
            },
            {
                "topologyKey": "zone",
                "labelSelector": {},
                "matchLabelKeys": ["app"],
                "mismatchLabelKeys": ["app"],
            },
            {
                "topologyKey": "zone",
                "labelSelector": {"matchLabels": {"app": "a"}},
                "matchLabelKeys": ["app"],
            },
        )
    ),
    *(
        pod(f"preferred pod affinity {value}", affinity("podAffinity", "preferred", [value]))
        for value in any_of(
            {"weight": 5, "podAffinityTerm": {"topologyKey": "zone"}},
            {"weight": 0, "podAffinityTerm": {"topologyKey": ""}},
            {"weight": 101},
        )
    ),
    *(
        pod(f"spread {value}", {"spec.topologySpreadConstraints": value})
        for value in any_of(
            [SPREAD],
            [{}],
            [{**SPREAD, "maxSkew": 0}],
            [{**SPREAD, "maxSkew": -1}],
            [{**SPREAD, "topologyKey": ""}],
            [{**SPREAD, "whenUnsatisfiable": "Foo"}],
            [SPREAD, SPREAD],
            [{**SPREAD, "minDomains": 0}],
            [{**SPREAD, "minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"}],
            [{**SPREAD, "nodeAffinityPolicy": "Foo", "nodeTaintsPolicy": "Bar"}],
            [{**SPREAD, "labelSelector": {"matchExpressions": [{"key": "a", "operator": "X"}]}}],
            [{**SPREAD, "matchLabelKeys": ["x"]}],
            [{**SPREAD, "matchLabelKeys": ["app"]}],
            [{**SPREAD, "labelSelector": {}, "matchLabelKeys": ["app"]}],
        )
    ),
    # security
    *(
        pod(f"pod securityContext {context}", {"spec.securityContext": context})
        for context in (
            {"runAsUser": -1, "runAsGroup": -1, "fsGroup": -1, "supplementalGroups": [-1]},
            {"runAsUser": 2**31},
            {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 5},
            {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]},
            {"sysctls": [{"name": "A b", "value": "1"}, {"name": "", "value": "1"}]},
            {"sysctls": [{"name": "net.a", "value": "1"}, {"name": "net.a", "value": "1"}]},
            {"fsGroupChangePolicy": "Foo"},
            {"supplementalGroupsPolicy": "Foo"},
            {"seLinuxChangePolicy": "Foo"},
            {"seccompProfile": {"type": "Foo"}},
            {"seccompProfile": {"type": ""}},
            {"seccompProfile": {"type": "Localhost"}},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "/a/../b"}},
            {"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "a"}},
            {"appArmorProfile": {"type": "Localhost"}},
            {"appArmorProfile": {"type": "Foo"}},
            {"appArmorProfile": {"type": "Localhost", "localhostProfile": " a"}},
        )
    ),
    pod(
        "sysctl and hostNetwork",
        {
            "spec.hostNetwork": True,
            "spec.securityContext": {"sysctls": [{"name": "net.ipv4.x", "value": "1"}]},
        },
    ),
    *(
        pod(f"securityContext {context}", {f"{C}.securityContext": context})
        for context in (
            {"runAsUser": -1, "runAsGroup": -5},
            {"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False},
            {"procMount": "Foo"},
            {"procMount": "Unmasked"},
            {"seccompProfile": {"type": "Localhost"}},
            {
                "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        )
    ),
    # annotations
    *(
        pod(f"annotation {key}={value}", {"metadata.annotations": {key: value}})
        for key, value in (
            ("controller.kubernetes.io/pod-deletion-cost", "x"),
            ("controller.kubernetes.io/pod-deletion-cost", "5"),
            ("controller.kubernetes.io/pod-deletion-cost", "+5"),
            ("controller.kubernetes.io/pod-deletion-cost", "05"),
            ("controller.kubernetes.io/pod-deletion-cost", "99999999999"),
            ("seccomp.security.alpha.kubernetes.io/pod", "foo"),
            ("container.apparmor.security.beta.kubernetes.io/d", "foo"),
            ("kubernetes.io/config.mirror", "x"),
        )
    ),
    # metadata
    pod("bad finalizer", {"metadata.finalizers": ["foo"]}),
    pod(
        "owner without uid",
        {"metadata.ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x"}]},
    ),
    pod("status is dropped", {"status": {"phase": "Running", "podIP": "1.2.3.4"}}),
    pod("guaranteed", {f"{C}.resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
    pod("burstable", {f"{C}.resources": {"requests": {"cpu": "1"}}}),
    pod("wrong type port", {f"{C}.ports": [{"containerPort": "http"}]}),
    pod("unknown field", {"spec.foo": 1}),
]

TERMS = (
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
)
GATED = {"spec.schedulingGates": [{"name": "a"}, {"name": "b"}]}
EC = {"name": "e", "image": "x"}
REQUESTS = {f"{C}.resources": {"requests": {"cpu": "1"}}}
BOTH = {f"{C}.resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
RUNNING = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "c",
            "image": "x",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 1}},
        }
    ],
}

CHANGES: list[Case] = [
    repod("image", {f"{C}.image": "nginx"}),
    repod("image empty", {f"{C}.image": ""}),
    repod("image spaces", {f"{C}.image": " nginx"}),
    repod("labels", {"metadata.labels": {"b": "c"}}),
    repod("annotations", {"metadata.annotations": {"b": "c"}}),
    repod("container name", {f"{C}.name": "d"}),
    repod("add container", {"spec.containers.1": {"name": "d", "image": "x"}}),
    repod("no containers", {"spec.containers": []}),
    repod("add init container", {"spec.initContainers": [{"name": "i", "image": "x"}]}),
    repod("command", {f"{C}.command": ["a"]}),
    repod("env", {f"{C}.env": [{"name": "a", "value": "b"}]}),
    repod("env bad", {f"{C}.env": [{"value": "b"}]}),
    repod("resources", {f"{C}.resources": {"limits": {"cpu": "2"}}}),
    repod("same quantity", {f"{C}.resources": {"requests": {"cpu": "1000m"}}}, first=REQUESTS),
    repod("nodeName", {"spec.nodeName": "n"}),
    repod("nodeSelector", {"spec.nodeSelector": {"a": "b"}}),
    repod("restartPolicy", {"spec.restartPolicy": "Never"}),
    repod(
        "restartPolicy gone", {"spec.restartPolicy": GONE}, first={"spec.restartPolicy": "Never"}
    ),
    repod("activeDeadlineSeconds new", {"spec.activeDeadlineSeconds": 10}),
    repod("activeDeadlineSeconds negative", {"spec.activeDeadlineSeconds": -1}),
    repod(
        "deadline down", {"spec.activeDeadlineSeconds": 5}, first={"spec.activeDeadlineSeconds": 10}
    ),
    repod(
        "deadline up", {"spec.activeDeadlineSeconds": 15}, first={"spec.activeDeadlineSeconds": 10}
    ),
    repod(
        "deadline zero", {"spec.activeDeadlineSeconds": 0}, first={"spec.activeDeadlineSeconds": 10}
    ),
    repod(
        "deadline gone",
        {"spec.activeDeadlineSeconds": GONE},
        first={"spec.activeDeadlineSeconds": 10},
    ),
    repod("toleration added", {"spec.tolerations.2": {"key": "a", "operator": "Exists"}}),
    repod("toleration bad", {"spec.tolerations.2": {"key": "a", "operator": "Foo"}}),
    repod("tolerations gone", {"spec.tolerations": []}),
    repod("toleration seconds", {"spec.tolerations.0.tolerationSeconds": 5}),
    repod("toleration effect", {"spec.tolerations.0.effect": "NoSchedule"}),
    repod("grace", {"spec.terminationGracePeriodSeconds": 5}),
    repod(
        "grace from negative to 1",
        {"spec.terminationGracePeriodSeconds": 1},
        first={"spec.terminationGracePeriodSeconds": -1},
    ),
    repod(
        "grace from negative to 2",
        {"spec.terminationGracePeriodSeconds": 2},
        first={"spec.terminationGracePeriodSeconds": -1},
    ),
    repod("gate removed", {"spec.schedulingGates": [{"name": "a"}]}, first=GATED),
    repod("gates removed", {"spec.schedulingGates": []}, first=GATED),
    repod("gate added", {"spec.schedulingGates.2": {"name": "c"}}, first=GATED),
    repod("gate on free pod", {"spec.schedulingGates": [{"name": "c"}]}),
    repod("gated nodeSelector added", {"spec.nodeSelector": {"a": "b"}}, first=GATED),
    repod(
        "gated nodeSelector changed",
        {"spec.nodeSelector": {"a": "c"}},
        first={**GATED, "spec.nodeSelector": {"a": "b"}},
    ),
    repod(
        "gated affinity added",
        affinity("nodeAffinity", "required", expression(key="a", operator="Exists")),
        first=GATED,
    ),
    repod(
        "gated affinity changed",
        affinity("nodeAffinity", "required", expression(key="b", operator="Exists")),
        first={
            **GATED,
            **affinity("nodeAffinity", "required", expression(key="a", operator="Exists")),
        },
    ),
    repod(
        "gated affinity term added",
        {f"{TERMS}.1": {"matchExpressions": [{"key": "z", "operator": "Exists"}]}},
        first={
            **GATED,
            **affinity("nodeAffinity", "required", expression(key="a", operator="Exists")),
        },
    ),
    repod(
        "gated affinity narrowed",
        {
            f"{TERMS}.0.matchExpressions.1": {
                "key": "z",
                "operator": "Exists",
            }
        },
        first={
            **GATED,
            **affinity("nodeAffinity", "required", expression(key="a", operator="Exists")),
        },
    ),
    repod("gated nodeName", {"spec.nodeName": "n"}, first=GATED),
    repod("uid", {"metadata.uid": "x"}),
    repod("creationTimestamp", {"metadata.creationTimestamp": "2001-01-01T00:00:00Z"}),
    repod("generation", {"metadata.generation": 7}),
    repod("priority", {"spec.priority": 7}),
    repod("serviceAccountName", {"spec.serviceAccountName": "other"}),
    repod("status through main", {"status.phase": "Failed"}),
    repod(
        "mirror annotation",
        {"metadata.annotations": {"kubernetes.io/config.mirror": "x"}},
        first={"spec.nodeName": "n"},
    ),
    # ephemeral containers
    repod("ephemeral through main", {"spec.ephemeralContainers": [EC]}),
    repod("ephemeral", {"spec.ephemeralContainers": [EC]}, part="ephemeralcontainers"),
    repod(
        "ephemeral no name",
        {"spec.ephemeralContainers": [{"image": "x"}]},
        part="ephemeralcontainers",
    ),
    repod(
        "ephemeral name clash",
        {"spec.ephemeralContainers": [{"name": "c", "image": "x"}]},
        part="ephemeralcontainers",
    ),
    repod(
        "ephemeral target",
        {"spec.ephemeralContainers": [{**EC, "targetContainerName": "c"}]},
        part="ephemeralcontainers",
    ),
    repod(
        "ephemeral bad target",
        {"spec.ephemeralContainers": [{**EC, "targetContainerName": "d"}]},
        part="ephemeralcontainers",
    ),
    repod(
        "ephemeral forbidden fields",
        {
            "spec.ephemeralContainers": [
                {
                    **EC,
                    "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "1"}},
                    "livenessProbe": PROBE,
                    "lifecycle": {"preStop": {"exec": {"command": ["a"]}}},
                }
            ]
        },
        part="ephemeralcontainers",
    ),
    repod(
        "ephemeral ignores rest",
        {"spec.ephemeralContainers": [EC], f"{C}.image": "z", "metadata.labels": {"x": "y"}},
        part="ephemeralcontainers",
    ),
    # resize
    repod("resize", {f"{C}.resources": {"requests": {"cpu": "2"}}}, first=REQUESTS, part="resize"),
    repod(
        "resize adds memory",
        {f"{C}.resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
        first=REQUESTS,
        part="resize",
    ),
    repod("resize qos", {f"{C}.resources": {"requests": {"cpu": "2"}}}, part="resize"),
    repod(
        "resize removes", {f"{C}.resources": {"requests": {"cpu": "1"}}}, first=BOTH, part="resize"
    ),
    repod(
        "resize above limit",
        {f"{C}.resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "2"}}},
        first=BOTH,
        part="resize",
    ),
    repod(
        "resize other",
        {f"{C}.resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}},
        first=REQUESTS,
        part="resize",
    ),
    repod(
        "resize ignores image",
        {f"{C}.resources": {"requests": {"cpu": "2"}}, f"{C}.image": "z"},
        first=REQUESTS,
        part="resize",
    ),
    repod(
        "resize adds container",
        {"spec.containers.1": {"name": "d", "image": "x"}},
        first=REQUESTS,
        part="resize",
    ),
    repod("resize renames", {f"{C}.name": "d"}, first=REQUESTS, part="resize"),
    # status
    repod("status phase", {"status.phase": "Running"}, part="status"),
    repod("status bad phase", {"status.phase": "Foo"}, part="status"),
    repod("status podIP", {"status.podIP": "1.2.3.4"}, part="status"),
    repod(
        "status podIPs", {"status.podIPs": [{"ip": "1.2.3.4"}, {"ip": "fd00::1"}]}, part="status"
    ),
    repod("status podIPs bad", {"status.podIPs": [{"ip": "foo"}]}, part="status"),
    repod(
        "status podIPs same family",
        {"status.podIPs": [{"ip": "1.2.3.4"}, {"ip": "1.2.3.5"}]},
        part="status",
    ),
    repod(
        "status podIP and podIPs differ",
        {"status.podIP": "1.2.3.9", "status.podIPs": [{"ip": "1.2.3.4"}]},
        part="status",
    ),
    repod(
        "status podIP changes",
        {"status.podIP": "1.2.3.9"},
        status={"podIP": "1.2.3.4", "podIPs": [{"ip": "1.2.3.4"}]},
        part="status",
    ),
    repod("status hostIP", {"status.hostIP": "1.2.3.4"}, part="status"),
    repod("status hostIPs only", {"status.hostIPs": [{"ip": "1.2.3.4"}]}, part="status"),
    repod(
        "status hostIPs good",
        {"status.hostIP": "1.2.3.4", "status.hostIPs": [{"ip": "1.2.3.4"}]},
        part="status",
    ),
    repod("status qosClass", {"status.qosClass": "Guaranteed"}, part="status"),
    repod("status qosClass gone", {"status.qosClass": GONE}, part="status"),
    repod(
        "status condition",
        {"status.conditions": [{"type": "example.com/a", "status": "True"}]},
        part="status",
    ),
    repod(
        "status condition bad",
        {"status.conditions": [{"type": "a b", "status": "True"}]},
        part="status",
    ),
    repod(
        "status condition bad status",
        {"status.conditions": [{"type": "Ready", "status": "Foo"}]},
        part="status",
    ),
    repod("status nominated", {"status.nominatedNodeName": "n"}, part="status"),
    repod("status nominated bad", {"status.nominatedNodeName": "A_"}, part="status"),
    repod(
        "status nominated bound",
        {"status.nominatedNodeName": "n"},
        first={"spec.nodeName": "m"},
        part="status",
    ),
    repod("status observedGeneration", {"status.observedGeneration": -1}, part="status"),
    repod(
        "status ignores spec",
        {"spec.containers.0.image": "z", "metadata.labels": {"x": "y"}, "status.message": "m"},
        part="status",
    ),
    repod(
        "status revived",
        {"status.containerStatuses.0.state": {"running": {}}},
        status=RUNNING,
        part="status",
    ),
    repod(
        "status revived Never",
        {"status.containerStatuses.0.state": {"running": {}}},
        first={"spec.restartPolicy": "Never"},
        status=RUNNING,
        part="status",
    ),
    repod(
        "status revived OnFailure",
        {"status.containerStatuses.0.state": {"running": {}}},
        first={"spec.restartPolicy": "OnFailure"},
        status=RUNNING,
        part="status",
    ),
    repod(
        "status owner",
        {
            "metadata.ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}
            ]
        },
        part="status",
    ),
]
