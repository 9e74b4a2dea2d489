"""Workloads that were sent to a real API server: each is a valid object with a few edits."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.cases import GONE, Case, any_of, change, create

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"containers": [{"name": "c", "image": "busybox"}]},
}
SELECTOR = {"matchLabels": {"app": "a"}}


def _of(kind: str, group: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deployment": (
        "/apis/apps/v1/namespaces/{ns}/deployments",
        _of("Deployment", "apps/v1", {"selector": SELECTOR, "template": TEMPLATE}),
    ),
    "replicaset": (
        "/apis/apps/v1/namespaces/{ns}/replicasets",
        _of("ReplicaSet", "apps/v1", {"selector": SELECTOR, "template": TEMPLATE}),
    ),
    "statefulset": (
        "/apis/apps/v1/namespaces/{ns}/statefulsets",
        _of(
            "StatefulSet",
            "apps/v1",
            {"selector": SELECTOR, "template": TEMPLATE, "serviceName": "s"},
        ),
    ),
    "daemonset": (
        "/apis/apps/v1/namespaces/{ns}/daemonsets",
        _of("DaemonSet", "apps/v1", {"selector": SELECTOR, "template": TEMPLATE}),
    ),
    "rc": (
        "/api/v1/namespaces/{ns}/replicationcontrollers",
        _of("ReplicationController", "v1", {"selector": {"app": "a"}, "template": TEMPLATE}),
    ),
    "podtemplate": (
        "/api/v1/namespaces/{ns}/podtemplates",
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "w"},
            "template": TEMPLATE,
        },
    ),
    "job": (
        "/apis/batch/v1/namespaces/{ns}/jobs",
        _of(
            "Job",
            "batch/v1",
            {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}},
        ),
    ),
    "cronjob": (
        "/apis/batch/v1/namespaces/{ns}/cronjobs",
        _of(
            "CronJob",
            "batch/v1",
            {
                "schedule": "* * * * *",
                "jobTemplate": {
                    "spec": {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}
                },
            },
        ),
    ),
    "revision": (
        "/apis/apps/v1/namespaces/{ns}/controllerrevisions",
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {"name": "w"},
            "revision": 1,
            "data": {"a": 1},
        },
    ),
    "budget": (
        "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets",
        _of("PodDisruptionBudget", "policy/v1", {"selector": SELECTOR, "minAvailable": 1}),
    ),
    "priority": (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "rules-a-w"},
            "value": 5,
        },
    ),
    "autoscaler": (
        "/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers",
        _of(
            "HorizontalPodAutoscaler",
            "autoscaling/v2",
            {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
                "maxReplicas": 5,
            },
        ),
    ),
}


def new(kind: str, label: str, edits: dict[str, Any]) -> Case:
    """An object to create."""
    path, base = BASES[kind]
    return create(path, f"{kind} {label}", base, edits)


def again(
    kind: str,
    label: str,
    edits: dict[str, Any],
    *,
    first: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    part: str = "",
) -> Case:
    """An object to change."""
    path, base = BASES[kind]
    return change(
        path, f"{kind} update {label}", base, edits, first=first, status=status, part=part
    )


def each(kind: str, field: str, *values: Any) -> list[Case]:
    """One new object for each value of a field."""
    return [new(kind, f"{field}={value}", {field: value}) for value in values]


RUNNING = ("deployment", "replicaset", "statefulset", "daemonset")
ROLLING = "spec.strategy.rollingUpdate"
DAEMON = "spec.updateStrategy.rollingUpdate"
CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
INDEXED = {"spec.completionMode": "Indexed", "spec.completions": 3}
JT = "spec.jobTemplate.spec"
EXIT = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 2]}}
CONDITION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
RESOURCE = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
}


def rule(**parts: Any) -> dict[str, Any]:
    """A failure policy with one rule."""
    return {"rules": [{"action": "FailJob", **parts}]}


def codes(**parts: Any) -> dict[str, Any]:
    """A failure policy with one rule about exit codes."""
    return rule(onExitCodes={"operator": "In", "values": [1], **parts})


CREATES: list[Case] = [
    *(new(kind, "good", {}) for kind in BASES),
    *(new(kind, "bad name", {"metadata.name": "Bad_"}) for kind in BASES),
    *(new(kind, "dotted name", {"metadata.name": "rules-a.b"}) for kind in BASES),
    *(new(kind, "long name", {"metadata.name": "a" * 64}) for kind in BASES),
    *(
        new(kind, "no spec", {"spec": GONE})
        for kind in BASES
        if kind not in {"podtemplate", "revision", "priority"}
    ),
    *(new(kind, "no selector", {"spec.selector": GONE}) for kind in (*RUNNING, "rc", "budget")),
    *(new(kind, "empty selector", {"spec.selector": {}}) for kind in (*RUNNING, "rc", "budget")),
    *(
        new(kind, "other selector", {"spec.selector": {"matchLabels": {"app": "b"}}})
        for kind in RUNNING
    ),
    *(
        new(kind, "bad selector", {"spec.selector": {"matchLabels": {"a b": "c d"}}})
        for kind in (*RUNNING, "budget")
    ),
    *(
        new(
            kind,
            f"selector expression {expression}",
            {"spec.selector": {"matchExpressions": [expression]}},
        )
        for kind in (*RUNNING, "budget")
        for expression in (
            {"key": "app", "operator": "In", "values": ["a", "b"]},
            {"key": "app", "operator": "Exists"},
            {"key": "app", "operator": "DoesNotExist"},
            {"key": "app", "operator": "NotIn", "values": ["a"]},
            {"key": "app", "operator": "Foo"},
            {"key": "app", "operator": "In"},
            {"key": "app", "operator": "Exists", "values": ["a"]},
            {"key": "app", "operator": "In", "values": ["a b"]},
            {"key": "", "operator": "Exists"},
        )
    ),
    *(new(kind, "no template", {"spec.template": GONE}) for kind in (*RUNNING, "rc", "job")),
    *(new(kind, "no labels", {"spec.template.metadata": GONE}) for kind in (*RUNNING, "rc")),
    *(
        new(
            kind, "bad template labels", {"spec.template.metadata.labels": {"app": "a", "b c": "d"}}
        )
        for kind in (*RUNNING, "rc", "job")
    ),
    *(
        new(
            kind,
            "bad template annotations",
            {"spec.template.metadata.annotations": {"b c": "d"}},
        )
        for kind in (*RUNNING, "rc", "job")
    ),
    *(
        new(kind, "no containers", {"spec.template.spec.containers": []})
        for kind in (*RUNNING, "rc", "job")
    ),
    *(
        new(kind, "template spaced image", {"spec.template.spec.containers.0.image": " x"})
        for kind in (*RUNNING, "job")
    ),
    *(
        new(kind, "template no image", {"spec.template.spec.containers.0.image": ""})
        for kind in (*RUNNING, "job")
    ),
    *(
        new(
            kind,
            "template mount",
            {"spec.template.spec.containers.0.volumeMounts": [{"name": "v", "mountPath": "/a"}]},
        )
        for kind in RUNNING
    ),
    *(
        new(
            kind,
            "template host network",
            {
                "spec.template.spec.hostNetwork": True,
                "spec.template.spec.containers.0.ports": [{"containerPort": 80}],
            },
        )
        for kind in RUNNING
    ),
    *(
        new(kind, f"restartPolicy {policy}", {"spec.template.spec.restartPolicy": policy})
        for kind in (*RUNNING, "rc", "job")
        for policy in ("Never", "OnFailure", "Always", "Foo")
    ),
    *(
        new(kind, "pod deadline", {"spec.template.spec.activeDeadlineSeconds": 5})
        for kind in (*RUNNING, "rc", "job")
    ),
    *(
        new(
            kind,
            "template ephemeral",
            {"spec.template.spec.ephemeralContainers": [{"name": "e", "image": "x"}]},
        )
        for kind in (*RUNNING, "job")
    ),
    *(
        new(
            kind,
            "template grace negative",
            {"spec.template.spec.terminationGracePeriodSeconds": -5},
        )
        for kind in RUNNING
    ),
    *(new(kind, "template hostname", {"spec.template.spec.hostname": "A_b"}) for kind in RUNNING),
    *(
        new(kind, f"replicas {number}", {"spec.replicas": number})
        for kind in ("deployment", "replicaset", "statefulset", "rc")
        for number in (-1, 0, 3)
    ),
    *(new(kind, "minReadySeconds", {"spec.minReadySeconds": -1}) for kind in (*RUNNING, "rc")),
    *(
        new(kind, "revisionHistoryLimit", {"spec.revisionHistoryLimit": -1})
        for kind in ("deployment", "statefulset", "daemonset")
    ),
    # deployments
    *each(
        "deployment",
        "spec.strategy",
        {"type": "Recreate"},
        {"type": "Foo"},
        {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}},
        {"rollingUpdate": {"maxSurge": 1}},
        {"type": "RollingUpdate"},
        {"type": ""},
    ),
    *each(
        "deployment",
        ROLLING,
        {"maxSurge": 0, "maxUnavailable": 0},
        {"maxSurge": "0%", "maxUnavailable": "0%"},
        {"maxSurge": "0%", "maxUnavailable": 0},
        {"maxSurge": 0},
        {"maxUnavailable": 0},
        {"maxUnavailable": "101%"},
        {"maxSurge": "101%"},
        {"maxUnavailable": "foo"},
        {"maxUnavailable": "5"},
        {"maxUnavailable": "-5%"},
        {"maxUnavailable": -1},
        {"maxSurge": -1},
        {"maxSurge": "foo"},
        {"maxSurge": "foo", "maxUnavailable": "bar"},
        {"maxSurge": 1.5},
    ),
    *each("deployment", "spec.progressDeadlineSeconds", -1, 0, 5),
    new(
        "deployment",
        "deadline below ready",
        {"spec.progressDeadlineSeconds": 5, "spec.minReadySeconds": 5},
    ),
    new("deployment", "ready above deadline", {"spec.minReadySeconds": 700}),
    new("deployment", "paused", {"spec.paused": True}),
    # statefulsets
    *each("statefulset", "spec.podManagementPolicy", "Parallel", "OrderedReady", "Foo", ""),
    *each(
        "statefulset",
        "spec.updateStrategy",
        {"type": "OnDelete"},
        {"type": "Foo"},
        {"type": "OnDelete", "rollingUpdate": {"partition": 1}},
        {"type": "RollingUpdate", "rollingUpdate": {"partition": -1}},
    ),
    *each(
        "statefulset",
        "spec.persistentVolumeClaimRetentionPolicy",
        {"whenDeleted": "Delete"},
        {"whenDeleted": "Foo", "whenScaled": "Bar"},
    ),
    *each("statefulset", "spec.ordinals", {"start": 5}, {"start": -1}),
    *each("statefulset", "spec.serviceName", "", "A_b", "a.b"),
    *each(
        "statefulset",
        "spec.volumeClaimTemplates",
        [CLAIM],
        [{"metadata": {"name": "data"}}],
        [{"metadata": {"name": "A_b"}, "spec": CLAIM["spec"]}],
        [{**CLAIM, "spec": {"accessModes": ["Foo"]}}],
        [CLAIM, CLAIM],
    ),
    new(
        "statefulset",
        "claim mounted",
        {
            "spec.volumeClaimTemplates": [CLAIM],
            "spec.template.spec.containers.0.volumeMounts": [{"name": "data", "mountPath": "/a"}],
        },
    ),
    new("statefulset", "name with 63", {"metadata.name": "a" * 63}),
    # daemonsets
    *each(
        "daemonset",
        "spec.updateStrategy",
        {"type": "OnDelete"},
        {"type": "Foo"},
        {"type": "RollingUpdate", "rollingUpdate": {}},
    ),
    *each(
        "daemonset",
        DAEMON,
        {"maxUnavailable": 0},
        {"maxUnavailable": 0, "maxSurge": 0},
        {"maxUnavailable": 0, "maxSurge": 1},
        {"maxUnavailable": 1, "maxSurge": 1},
        {"maxSurge": 1},
        {"maxUnavailable": "101%"},
        {"maxUnavailable": "x"},
        {"maxUnavailable": -1},
        {"maxUnavailable": 0, "maxSurge": "110%"},
    ),
    new(
        "daemonset",
        "template generation",
        {"metadata.annotations": {"deprecated.daemonset.template.generation": "7"}},
    ),
    # jobs
    *(
        case
        for field in (
            "parallelism",
            "completions",
            "activeDeadlineSeconds",
            "backoffLimit",
            "ttlSecondsAfterFinished",
        )
        for case in each("job", f"spec.{field}", -1, 0, 5)
    ),
    *each("job", "spec.completionMode", "Indexed", "NonIndexed", "Foo", ""),
    new("job", "indexed", INDEXED),
    new("job", "indexed long name", {**INDEXED, "metadata.name": "a" * 62}),
    new("job", "indexed dotted name", {**INDEXED, "metadata.name": "a.b"}),
    new("job", "indexed parallelism", {**INDEXED, "spec.parallelism": 100_001}),
    new("job", "indexed backoff", {**INDEXED, "spec.backoffLimitPerIndex": 1}),
    new("job", "indexed failed without backoff", {**INDEXED, "spec.maxFailedIndexes": 1}),
    new(
        "job",
        "indexed failed above",
        {**INDEXED, "spec.backoffLimitPerIndex": 1, "spec.maxFailedIndexes": 4},
    ),
    new("job", "backoffLimitPerIndex", {"spec.backoffLimitPerIndex": 1}),
    new("job", "maxFailedIndexes", {"spec.maxFailedIndexes": 1}),
    new(
        "job",
        "very many",
        {**INDEXED, "spec.completions": 200_000, "spec.backoffLimitPerIndex": 1},
    ),
    new("job", "selector", {"spec.selector": SELECTOR}),
    new("job", "manual without selector", {"spec.manualSelector": True}),
    new(
        "job",
        "manual good",
        {
            "spec.manualSelector": True,
            "spec.selector": SELECTOR,
            "spec.template.metadata.labels": {"app": "a"},
        },
    ),
    new(
        "job",
        "manual other",
        {
            "spec.manualSelector": True,
            "spec.selector": SELECTOR,
            "spec.template.metadata.labels": {"app": "b"},
        },
    ),
    new("job", "own job-name", {"spec.template.metadata.labels": {"job-name": "x"}}),
    new("job", "own controller-uid", {"spec.template.metadata.labels": {"controller-uid": "x"}}),
    new("job", "own labels", {"spec.template.metadata.labels": {"app": "x"}}),
    new("job", "suspend", {"spec.suspend": True}),
    *each("job", "spec.managedBy", "kubernetes.io/job-controller", "foo", "a.b/c", "", "A_/b"),
    new("job", "long managedBy", {"spec.managedBy": "a/" + "b" * 64}),
    *each("job", "spec.podReplacementPolicy", "Failed", "TerminatingOrFailed", "Foo"),
    *each(
        "job",
        "spec.podFailurePolicy",
        {"rules": [EXIT]},
        {"rules": [CONDITION]},
        {"rules": []},
        {"rules": [{**EXIT, "action": ""}]},
        {"rules": [{**EXIT, "action": "Foo"}]},
        {"rules": [{**EXIT, "action": "FailIndex"}]},
        {"rules": [{"action": "FailJob"}]},
        {"rules": [{**EXIT, **CONDITION}]},
        {"rules": [EXIT] * 21},
        codes(operator=""),
        codes(operator="Foo"),
        codes(values=[]),
        codes(values=[0]),
        codes(values=[1, 1]),
        codes(values=[2, 1]),
        codes(containerName="c"),
        codes(containerName="d"),
        rule(onPodConditions=[{"type": "a b", "status": "Foo"}]),
        rule(onPodConditions=[{"type": ""}]),
    ),
    new(
        "job",
        "failure policy OnFailure",
        {
            "spec.podFailurePolicy": {"rules": [EXIT]},
            "spec.template.spec.restartPolicy": "OnFailure",
        },
    ),
    new(
        "job",
        "failure policy replacement",
        {
            "spec.podFailurePolicy": {"rules": [EXIT]},
            "spec.podReplacementPolicy": "TerminatingOrFailed",
        },
    ),
    new(
        "job",
        "success policy not indexed",
        {"spec.successPolicy": {"rules": [{"succeededCount": 1}]}},
    ),
    *(
        new("job", f"success policy {policy}", {**INDEXED, "spec.successPolicy": policy})
        for policy in any_of(
            {"rules": [{"succeededCount": 1}]},
            {"rules": []},
            {"rules": [{}]},
            {"rules": [{"succeededCount": 4}]},
            {"rules": [{"succeededCount": -1}]},
            {"rules": [{"succeededIndexes": "0,2"}]},
            {"rules": [{"succeededIndexes": "0-2"}]},
            {"rules": [{"succeededIndexes": "2,0"}]},
            {"rules": [{"succeededIndexes": "5"}]},
            {"rules": [{"succeededIndexes": "x"}]},
            {"rules": [{"succeededIndexes": "0", "succeededCount": 2}]},
            {"rules": [{"succeededIndexes": ""}]},
        )
    ),
    # cronjobs
    *each(
        "cronjob",
        "spec.schedule",
        "",
        "foo",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "*/5 * * * *",
        "*/0 * * * *",
        "5/10 * * * *",
        "1-5/2 * * * *",
        "5-1 * * * *",
        "1,2,3 * * * *",
        "1,,2 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * jan-mar *",
        "* * * JAN *",
        "* * * * 7",
        "* * * * sun",
        "* * * * foo",
        "? ? ? ? ?",
        "@hourly",
        "@daily",
        "@foo",
        "@every 5m",
        "@every 1h30m",
        "@every foo",
        "TZ=UTC * * * * *",
        "CRON_TZ=Europe/Berlin * * * * *",
        "TZ=UTC",
        " * * * * * ",
        "-1 * * * *",
        "*/1-2 * * * *",
        "1/2/3 * * * *",
    ),
    *each(
        "cronjob",
        "spec.timeZone",
        "Europe/Berlin",
        "UTC",
        "",
        "Local",
        "local",
        "Foo/Bar",
        "../etc",
        "Europe/berlin",
        "a b",
        "Etc/GMT+5",
    ),
    *each("cronjob", "spec.concurrencyPolicy", "Forbid", "Foo", ""),
    *each("cronjob", "spec.startingDeadlineSeconds", -1, 5),
    *each("cronjob", "spec.successfulJobsHistoryLimit", -1, 0),
    *each("cronjob", "spec.failedJobsHistoryLimit", -1, 0),
    new("cronjob", "name 52", {"metadata.name": "a" * 52}),
    new("cronjob", "name 53", {"metadata.name": "a" * 53}),
    new("cronjob", "no jobTemplate", {"spec.jobTemplate": GONE}),
    new("cronjob", "inner restartPolicy", {f"{JT}.template.spec.restartPolicy": "Always"}),
    new("cronjob", "inner containers", {f"{JT}.template.spec.containers": []}),
    new("cronjob", "inner parallelism", {f"{JT}.parallelism": -1}),
    new("cronjob", "inner selector", {f"{JT}.selector": SELECTOR}),
    new("cronjob", "inner manual", {f"{JT}.manualSelector": True}),
    # others
    *each("revision", "revision", -1, 0),
    *each("revision", "data", None, 5, [1], {}, "x"),
    new("podtemplate", "no containers", {"template.spec.containers": []}),
    new("podtemplate", "no template", {"template": GONE}),
    new("budget", "both", {"spec.maxUnavailable": 1}),
    new("budget", "neither", {"spec.minAvailable": GONE}),
    *each("budget", "spec.minAvailable", -1, 0, "50%", "101%", "foo", "5", "-5%", "100%"),
    *(
        new(
            "budget",
            f"maxUnavailable {value}",
            {"spec.minAvailable": GONE, "spec.maxUnavailable": value},
        )
        for value in (-1, 0, "50%", "101%", "foo", "5")
    ),
    *each("budget", "spec.unhealthyPodEvictionPolicy", "AlwaysAllow", "IfHealthyBudget", "Foo"),
    *each("priority", "value", -5, 0, 1_000_000_000, 1_000_000_001),
    *each("priority", "metadata.name", "system-foo", "system-node-critical"),
    *each("priority", "preemptionPolicy", "Never", "Foo", ""),
    new("priority", "default", {"globalDefault": True}),
    *each("autoscaler", "spec.minReplicas", -1, 0, 1, 6),
    *each("autoscaler", "spec.maxReplicas", -1, 0),
    *each(
        "autoscaler",
        "spec.scaleTargetRef",
        {},
        {"kind": "a/b", "name": "c/d", "apiVersion": "a/b/c"},
        {"kind": "a", "name": "b", "apiVersion": "v1"},
    ),
    *each(
        "autoscaler",
        "spec.metrics",
        [RESOURCE],
        [{"type": "Foo"}],
        [{}],
        [{"type": "Resource"}],
        [{**RESOURCE, "type": "Pods"}],
        [{"type": "Resource", "resource": {"name": "", "target": {}}}],
        [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Value", "value": "5"}},
            }
        ],
        [
            {
                "type": "Resource",
                "resource": {
                    "name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 0},
                },
            }
        ],
        [{"type": "Pods", "pods": {"metric": {"name": ""}, "target": {"type": "AverageValue"}}}],
        [
            {
                "type": "External",
                "external": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "5"}},
            }
        ],
    ),
    *each(
        "autoscaler",
        "spec.behavior",
        {"scaleUp": {"stabilizationWindowSeconds": 5}},
        {"scaleUp": {"stabilizationWindowSeconds": 5000, "selectPolicy": "Foo"}},
        {"scaleDown": {"policies": [{"type": "Foo", "value": 0, "periodSeconds": 0}]}},
        {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}},
    ),
]

DONE = {
    "status.conditions": [
        {"type": "SuccessCriteriaMet", "status": "True"},
        {"type": "Complete", "status": "True"},
    ],
    "status.startTime": "2026-01-01T00:00:00Z",
    "status.completionTime": "2026-01-01T00:01:00Z",
}
SET_DONE = {key.removeprefix("status."): value for key, value in DONE.items()}
SUSPENDED = {"spec.suspend": True}
T = "spec.template.spec"

CHANGES: list[Case] = [
    *(again(kind, "nothing", {}) for kind in BASES),
    *(again(kind, "labels", {"metadata.labels": {"x": "y"}}) for kind in BASES),
    *(again(kind, "annotations", {"metadata.annotations": {"x": "y"}}) for kind in BASES),
    *(
        again(kind, "selector", {"spec.selector": {"matchLabels": {"app": "b"}}})
        for kind in (*RUNNING, "budget")
    ),
    *(
        again(
            kind,
            "selector and labels",
            {
                "spec.selector": {"matchLabels": {"app": "b"}},
                "spec.template.metadata.labels": {"app": "b"},
            },
        )
        for kind in RUNNING
    ),
    *(again(kind, "selector gone", {"spec.selector": GONE}) for kind in RUNNING),
    *(
        again(kind, "labels off selector", {"spec.template.metadata.labels": {"app": "b"}})
        for kind in RUNNING
    ),
    *(
        again(kind, "image", {f"{T}.containers.0.image": "nginx"})
        for kind in (*RUNNING, "rc", "job")
    ),
    *(again(kind, "image empty", {f"{T}.containers.0.image": ""}) for kind in (*RUNNING, "rc")),
    *(
        again(kind, "replicas", {"spec.replicas": 3})
        for kind in ("deployment", "replicaset", "statefulset", "rc")
    ),
    *(
        again(kind, "replicas negative", {"spec.replicas": -3})
        for kind in ("deployment", "replicaset", "statefulset", "rc")
    ),
    *(
        again(kind, "status through main", {"status.replicas": 3})
        for kind in ("deployment", "replicaset", "statefulset", "rc")
    ),
    again("deployment", "strategy", {"spec.strategy": {"type": "Recreate"}}),
    again("deployment", "strategy type only", {"spec.strategy.type": "Recreate"}),
    again("deployment", "generation", {"metadata.generation": 9}),
    again("statefulset", "serviceName", {"spec.serviceName": "other"}),
    again("statefulset", "podManagementPolicy", {"spec.podManagementPolicy": "Parallel"}),
    again("statefulset", "claims", {"spec.volumeClaimTemplates": [CLAIM]}),
    again(
        "statefulset",
        "claims changed",
        {"spec.volumeClaimTemplates.0.spec.resources.requests.storage": "2Gi"},
        first={"spec.volumeClaimTemplates": [CLAIM]},
    ),
    again("statefulset", "updateStrategy", {"spec.updateStrategy": {"type": "OnDelete"}}),
    again("statefulset", "minReadySeconds", {"spec.minReadySeconds": 5}),
    again("statefulset", "ordinals", {"spec.ordinals": {"start": 5}}),
    again("statefulset", "revisionHistoryLimit", {"spec.revisionHistoryLimit": 5}),
    again(
        "statefulset",
        "retention",
        {
            "spec.persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Delete",
                "whenScaled": "Delete",
            }
        },
    ),
    again(
        "daemonset",
        "template generation",
        {"metadata.annotations": {"deprecated.daemonset.template.generation": "9"}},
    ),
    again("daemonset", "strategy", {"spec.updateStrategy": {"type": "OnDelete"}}),
    # jobs
    again("job", "parallelism", {"spec.parallelism": 3}),
    again("job", "completions", {"spec.completions": 3}),
    again("job", "completions gone", {"spec.completions": GONE}),
    again("job", "backoffLimit", {"spec.backoffLimit": 3}),
    again("job", "suspend", {"spec.suspend": True}),
    again("job", "ttl", {"spec.ttlSecondsAfterFinished": 3}),
    again("job", "deadline", {"spec.activeDeadlineSeconds": 3}),
    again("job", "selector", {"spec.selector": SELECTOR}),
    again("job", "completionMode", {"spec.completionMode": "Indexed", "spec.completions": 1}),
    again("job", "manualSelector", {"spec.manualSelector": True}),
    again("job", "managedBy", {"spec.managedBy": "a.b/c"}),
    again("job", "failure policy", {"spec.podFailurePolicy": {"rules": [EXIT]}}),
    again("job", "indexed both", {"spec.completions": 5, "spec.parallelism": 5}, first=INDEXED),
    again("job", "indexed completions", {"spec.completions": 5}, first=INDEXED),
    again(
        "job",
        "success policy",
        {"spec.successPolicy": {"rules": [{"succeededCount": 1}]}},
        first=INDEXED,
    ),
    again("job", "suspended nodeSelector", {f"{T}.nodeSelector": {"a": "b"}}, first=SUSPENDED),
    again("job", "running nodeSelector", {f"{T}.nodeSelector": {"a": "b"}}),
    again("job", "suspended image", {f"{T}.containers.0.image": "z"}, first=SUSPENDED),
    again(
        "job",
        "suspended resources",
        {f"{T}.containers.0.resources": {"requests": {"cpu": "1"}}},
        first=SUSPENDED,
    ),
    again("job", "suspended labels", {"spec.template.metadata.labels.x": "y"}, first=SUSPENDED),
    again(
        "job",
        "suspended tolerations",
        {f"{T}.tolerations": [{"operator": "Exists"}]},
        first=SUSPENDED,
    ),
    again(
        "job",
        "suspended affinity",
        {
            f"{T}.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {}}
            ]
        },
        first=SUSPENDED,
    ),
    again(
        "job",
        "suspended active",
        {f"{T}.nodeSelector": {"a": "b"}},
        first=SUSPENDED,
        status={"active": 1},
    ),
    again(
        "job",
        "suspended started",
        {f"{T}.nodeSelector": {"a": "b"}},
        first=SUSPENDED,
        status={"startTime": "2026-01-01T00:00:00Z"},
    ),
    # cronjobs
    again("cronjob", "schedule", {"spec.schedule": "5 * * * *"}),
    again("cronjob", "schedule bad", {"spec.schedule": "5"}),
    again("cronjob", "zone", {"spec.timeZone": "UTC"}),
    again("cronjob", "zone bad", {"spec.timeZone": "Foo/Bar"}),
    again("cronjob", "image", {f"{JT}.template.spec.containers.0.image": "z"}),
    again("cronjob", "suspend", {"spec.suspend": True}),
    # others
    again("revision", "data", {"data": {"a": 2}}),
    again("revision", "data gone", {"data": GONE}),
    again("revision", "revision", {"revision": 2}),
    again("revision", "revision negative", {"revision": -2}),
    again("podtemplate", "image", {"template.spec.containers.0.image": "z"}),
    again("budget", "minAvailable", {"spec.minAvailable": 2}),
    again("budget", "switch", {"spec.minAvailable": GONE, "spec.maxUnavailable": 2}),
    again("budget", "both", {"spec.maxUnavailable": 2}),
    again("budget", "bad policy", {"spec.unhealthyPodEvictionPolicy": "Foo"}),
    again("budget", "no version", {"metadata.resourceVersion": GONE}),
    again("priority", "value", {"value": 6}),
    again("priority", "preemption", {"preemptionPolicy": "Never"}),
    again("priority", "description", {"description": "d"}),
    again("priority", "default", {"globalDefault": True}),
    again("autoscaler", "max", {"spec.maxReplicas": 9}),
    again("autoscaler", "max below", {"spec.maxReplicas": 0}),
    # statuses
    *(
        again(
            kind,
            f"status {edits}",
            {f"status.{key}": value for key, value in edits.items()},
            part="status",
        )
        for kind in ("deployment", "replicaset", "statefulset", "rc")
        for edits in (
            {"replicas": 3, "readyReplicas": 2, "availableReplicas": 1, "observedGeneration": 1},
            {"replicas": -1},
            {"replicas": 1, "readyReplicas": 2},
            {"replicas": 2, "readyReplicas": 1, "availableReplicas": 2},
            {"observedGeneration": -1},
            {"replicas": 1, "fullyLabeledReplicas": 2, "updatedReplicas": 2, "currentReplicas": 2},
            {"terminatingReplicas": -1, "collisionCount": -1},
        )
    ),
    *(
        again(
            kind,
            "status ignores spec",
            {
                "spec.replicas": 7,
                "metadata.labels": {"x": "y"},
                "metadata.annotations.x": "y",
                "status.observedGeneration": 1,
            },
            first={"metadata.annotations": {"z": "z"}},
            part="status",
        )
        for kind in ("deployment", "replicaset", "statefulset", "daemonset", "rc")
    ),
    *(
        again(
            kind,
            "status collisions",
            {"status.collisionCount": 1},
            status={"collisionCount": 2},
            part="status",
        )
        for kind in ("deployment", "statefulset", "daemonset")
    ),
    again(
        "daemonset",
        "status good",
        {"status.numberReady": 1, "status.desiredNumberScheduled": 1},
        part="status",
    ),
    again(
        "daemonset",
        "status negative",
        {"status.numberReady": -1, "status.numberAvailable": -1},
        part="status",
    ),
    again("job", "status active", {"status.active": 1, "status.ready": 1}, part="status"),
    again("job", "status negative", {"status.active": -1, "status.failed": -1}, part="status"),
    again("job", "status ready above", {"status.ready": 1}, part="status"),
    again("job", "status done", DONE, part="status"),
    again(
        "job",
        "status complete bare",
        {"status.conditions": [{"type": "Complete", "status": "True"}]},
        part="status",
    ),
    again(
        "job",
        "status failed bare",
        {"status.conditions": [{"type": "Failed", "status": "True"}]},
        part="status",
    ),
    again("job", "status done and active", {**DONE, "status.active": 1}, part="status"),
    again("job", "status undone", {"status.conditions": []}, status=SET_DONE, part="status"),
    again(
        "job",
        "status end before start",
        {**DONE, "status.completionTime": "2025-01-01T00:00:00Z"},
        part="status",
    ),
    again(
        "job",
        "status end moved",
        {"status.completionTime": "2026-01-01T00:02:00Z"},
        status=SET_DONE,
        part="status",
    ),
    again(
        "job",
        "status start moved",
        {"status.startTime": "2026-01-01T00:02:00Z"},
        status={"startTime": "2026-01-01T00:00:00Z"},
        part="status",
    ),
    again(
        "job",
        "status fewer",
        {"status.succeeded": 1, "status.failed": 1},
        status={"succeeded": 2, "failed": 2},
        part="status",
    ),
    again("job", "status indexes", {"status.completedIndexes": "0"}, part="status"),
    again(
        "job", "status indexed", {"status.completedIndexes": "0,2"}, first=INDEXED, part="status"
    ),
    again(
        "job",
        "status indexed bad",
        {"status.completedIndexes": "0,7"},
        first=INDEXED,
        part="status",
    ),
    again(
        "job", "status failedIndexes", {"status.failedIndexes": "0"}, first=INDEXED, part="status"
    ),
    again(
        "job",
        "status overlap",
        {"status.failedIndexes": "0", "status.completedIndexes": "0-1"},
        first={**INDEXED, "spec.backoffLimitPerIndex": 1},
        part="status",
    ),
    again(
        "job",
        "status uncounted",
        {"status.uncountedTerminatedPods": {"succeeded": ["a", "a", ""]}},
        part="status",
    ),
    again("cronjob", "status", {"status.lastScheduleTime": "2026-01-01T00:00:00Z"}, part="status"),
    again(
        "budget",
        "status",
        {"status.disruptionsAllowed": 1, "status.observedGeneration": 1},
        part="status",
    ),
    again(
        "budget",
        "status negative",
        {"status.disruptionsAllowed": -1, "status.expectedPods": -1},
        part="status",
    ),
    again(
        "budget",
        "status condition",
        {
            "status.conditions": [
                {
                    "type": "a b",
                    "status": "Foo",
                    "reason": "",
                    "message": "",
                    "lastTransitionTime": None,
                }
            ]
        },
        part="status",
    ),
    again(
        "budget",
        "status conditions twice",
        {
            "status.conditions": [
                {
                    "type": "a",
                    "status": "True",
                    "reason": "R",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
            * 2
        },
        part="status",
    ),
    again(
        "budget",
        "status ignores spec",
        {"spec.minAvailable": 7, "metadata.labels": {"x": "y"}, "status.currentHealthy": 1},
        part="status",
    ),
    again("autoscaler", "status", {"status.currentReplicas": -1}, part="status"),
]
