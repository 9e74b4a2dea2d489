"""The cells of a row: what kubectl shows of an object of each kind.

The columns are facts of the generated table, in its order; a printer here makes the cells of one
object in that order. Kinds without a printer show the cells their columns name: name, age, creation
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from zonewise.api import selector, times
from zonewise.api.errors import ParseError
from zonewise.api.kinds import Kind
from zonewise.api.meta import LabelSelector

Obj = dict[str, Any]
Printer = Callable[[Obj, str], list[Any]]

NONE = "<none>"
UNKNOWN = "<unknown>"
UNSET = "<unset>"
_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}

_PRINTERS: dict[str, Printer] = {}


def printer_of(kind: Kind) -> Printer:
    """The printer of a kind."""
    known = _PRINTERS.get(kind.storage)
    if known is not None:
        return known
    names = [column.name for column in kind.columns]

    def plain(obj: Obj, now: str) -> list[Any]:
        cells: list[Any] = []
        for name in names:
            match name:
                case "Name":
                    cells.append(_name(obj))
                case "Age":
                    cells.append(_age(obj, now))
                case "Created At":
                    cells.append(obj["metadata"].get("creationTimestamp"))
                case _:
                    cells.append(NONE)
        return cells

    return plain


def _of(*storages: str) -> Callable[[Printer], Printer]:
    def register(printer: Printer) -> Printer:
        for storage in storages:
            _PRINTERS[storage] = printer
        return printer

    return register


def duration(seconds: float) -> str:
    """A length of time as people read it: two units at most, rounding down."""
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def since(moment: str | None, now: str) -> str:
    """How long ago something was."""
    if not moment:
        return UNKNOWN
    try:
        return duration((times.parse(now) - times.parse(moment)).total_seconds())
    except ParseError:
        return UNKNOWN


def _name(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name


def _age(obj: Obj, now: str) -> str:
    return since(obj["metadata"].get("creationTimestamp"), now)


def _labels(wanted: Obj | None) -> str:
    if not wanted:
        return NONE
    if "matchLabels" in wanted or "matchExpressions" in wanted:
        try:
            text = str(selector.from_object(msgspec.convert(wanted, LabelSelector)))
        except (ParseError, msgspec.ValidationError):
            return "<error>"
        return text or NONE
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))


def _containers(spec: Obj | None) -> list[str]:
    containers = (spec or {}).get("containers") or ()
    return [
        ",".join(one.get("name", "") for one in containers),
        ",".join(one.get("image", "") for one in containers),
    ]


def _template(obj: Obj) -> Obj:
    spec: Obj = (obj.get("spec") or {}).get("template", {}).get("spec") or {}
    return spec


def _status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def _spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def _joined(values: Iterable[str], empty: str = NONE) -> str:
    return ",".join(values) or empty


@_of("/pods")
def _pod(obj: Obj, now: str) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    reason, ready, total, restarts, last = _pod_reason(obj)
    shown = str(restarts)
    if restarts and last:
        shown = f"{restarts} ({since(last, now)} ago)"
    gates = NONE
    if spec.get("readinessGates"):
        good = {
            one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"
        }
        met = sum(gate.get("conditionType") in good for gate in spec["readinessGates"])
        gates = f"{met}/{len(spec['readinessGates'])}"
    addresses = status.get("podIPs") or ()
    address = addresses[0].get("ip", "") if addresses else status.get("podIP", "")
    return [
        _name(obj),
        f"{ready}/{total}",
        reason,
        shown,
        _age(obj, now),
        address or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        gates,
    ]


def _pod_reason(obj: Obj) -> tuple[str, int, int, int, str]:
    spec, status = _spec(obj), _status(obj)
    reason = status.get("reason") or status.get("phase", "")
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    sidecars = {
        one["name"]
        for one in spec.get("initContainers") or ()
        if one.get("restartPolicy") == "Always"
    }
    total = len(spec.get("containers") or ()) + len(sidecars)
    ready = restarts = sidecar_restarts = 0
    last = ""
    initializing = False
    states = status.get("initContainerStatuses") or []
    for index, one in enumerate(states):
        state = one.get("state") or {}
        restarts += one.get("restartCount", 0)
        last = max(last, _finished(one))
        sidecar = one.get("name") in sidecars
        if sidecar:
            sidecar_restarts += one.get("restartCount", 0)
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if sidecar and one.get("started"):
            ready += bool(one.get("ready"))
            continue
        initializing = True
        if ended is not None:
            reason = f"Init:{_ending(ended)}"
        elif waiting and waiting.get("reason") not in {None, "", "PodInitializing"}:
            reason = f"Init:{waiting['reason']}"
        else:
            reason = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        break
    if not initializing:
        restarts = sidecar_restarts
        running = False
        for one in reversed(status.get("containerStatuses") or ()):
            state = one.get("state") or {}
            restarts += one.get("restartCount", 0)
            last = max(last, _finished(one))
            ended, waiting = state.get("terminated"), state.get("waiting")
            if waiting and waiting.get("reason"):
                reason = waiting["reason"]
            elif ended is not None:
                reason = _ending(ended)
            elif one.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if reason == "Completed" and running:
            good = any(
                one.get("type") == "Ready" and one.get("status") == "True"
                for one in status.get("conditions") or ()
            )
            reason = "Running" if good else "NotReady"
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in {"Failed", "Succeeded"}:
            reason = "Terminating"
    return reason, ready, total, restarts, last


def _finished(container: Obj) -> str:
    ended = (container.get("lastState") or {}).get("terminated") or {}
    return ended.get("finishedAt") or ""


def _ending(ended: Obj) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


@_of("/nodes")
def _node(obj: Obj, now: str) -> list[Any]:
    status = _status(obj)
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    if "Ready" in conditions:
        state = "Ready" if conditions["Ready"] == "True" else "NotReady"
    else:
        state = "Unknown"
    if _spec(obj).get("unschedulable"):
        state += ",SchedulingDisabled"
    roles = sorted(
        key.removeprefix("node-role.kubernetes.io/") if "/role" not in key else value
        for key, value in (obj["metadata"].get("labels") or {}).items()
        if key.startswith("node-role.kubernetes.io/") or (key == "kubernetes.io/role" and value)
    )
    info = status.get("nodeInfo") or {}

    def address(kind: str) -> str:
        for one in status.get("addresses") or ():
            if one.get("type") == kind:
                return str(one.get("address"))
        return NONE

    return [
        _name(obj),
        state,
        _joined(role for role in roles if role),
        _age(obj, now),
        info.get("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


@_of("/services")
def _service(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    kind = spec.get("type", "")
    outside = list(spec.get("externalIPs") or ())
    external = _joined(outside)
    if kind == "LoadBalancer":
        ingress = (_status(obj).get("loadBalancer") or {}).get("ingress") or ()
        found = [one.get("ip") or one.get("hostname", "") for one in ingress] + outside
        external = _joined(found, "<pending>")
    elif kind == "ExternalName":
        external = spec.get("externalName", "")
    ports = _joined(
        f"{port.get('port')}"
        + (f":{port['nodePort']}" if port.get("nodePort") else "")
        + f"/{port.get('protocol', 'TCP')}"
        for port in spec.get("ports") or ()
    )
    address = (spec.get("clusterIPs") or [spec.get("clusterIP")])[0] or NONE
    return [
        _name(obj),
        kind,
        address,
        external,
        ports,
        _age(obj, now),
        _labels(spec.get("selector")),
    ]


@_of("apps/deployments")
def _deployment(obj: Obj, now: str) -> list[Any]:
    status = _status(obj)
    return [
        _name(obj),
        f"{status.get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age(obj, now),
        *_containers(_template(obj)),
        _labels(_spec(obj).get("selector")),
    ]


@_of("apps/replicasets", "/replicationcontrollers")
def _replica_set(obj: Obj, now: str) -> list[Any]:
    status = _status(obj)
    return [
        _name(obj),
        _spec(obj).get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _age(obj, now),
        *_containers(_template(obj)),
        _labels(_spec(obj).get("selector")),
    ]


@_of("apps/statefulsets")
def _stateful_set(obj: Obj, now: str) -> list[Any]:
    return [
        _name(obj),
        f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}",
        _age(obj, now),
        *_containers(_template(obj)),
    ]


@_of("apps/daemonsets")
def _daemon_set(obj: Obj, now: str) -> list[Any]:
    status = _status(obj)
    return [
        _name(obj),
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        _labels(_template(obj).get("nodeSelector")),
        _age(obj, now),
        *_containers(_template(obj)),
        _labels(_spec(obj).get("selector")),
    ]


@_of("batch/jobs")
def _job(obj: Obj, now: str) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    done = status.get("succeeded", 0)
    if spec.get("completions") is not None:
        completions = f"{done}/{spec['completions']}"
    else:
        parallel = spec.get("parallelism") or 0
        completions = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    length = ""
    if status.get("startTime"):
        end = status.get("completionTime") or now
        gone = times.parse(end) - times.parse(status["startTime"])
        length = duration(gone.total_seconds())
    conditions = {
        one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"
    }
    state = "Running"
    for name, shown in (
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if name in conditions:
            state = shown
            break
    else:
        if obj["metadata"].get("deletionTimestamp"):
            state = "Terminating"
    return [
        _name(obj),
        state,
        completions,
        length,
        _age(obj, now),
        *_containers(_template(obj)),
        _labels(spec.get("selector")),
    ]


@_of("batch/cronjobs")
def _cron_job(obj: Obj, now: str) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    last = status.get("lastScheduleTime")
    return [
        _name(obj),
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        "True" if spec.get("suspend") else "False",
        len(status.get("active") or ()),
        since(last, now) if last else NONE,
        _age(obj, now),
        *_containers((job.get("template") or {}).get("spec")),
        _labels(job.get("selector")),
    ]


@_of("/configmaps")
def _config_map(obj: Obj, now: str) -> list[Any]:
    count = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
    return [_name(obj), count, _age(obj, now)]


@_of("/secrets")
def _secret(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), obj.get("type", ""), len(obj.get("data") or ()), _age(obj, now)]


@_of("/namespaces")
def _namespace(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), _status(obj).get("phase", ""), _age(obj, now)]


@_of("/events")
def _event(obj: Obj, now: str) -> list[Any]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    series = obj.get("series") or {}
    event_time = obj.get("eventTime")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or event_time
    last = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("deprecatedLastTimestamp")
        or first
    )
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    where = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return [
        since(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{where}, {host}" if host else where,
        (obj.get("message") or obj.get("note") or "").strip(),
        since(first, now),
        count,
        _name(obj),
    ]


def _modes(modes: Iterable[str] | None) -> str:
    have = set(modes or ())
    return ",".join(short for mode, short in _MODES.items() if mode in have)


@_of("/persistentvolumeclaims")
def _claim(obj: Obj, now: str) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    phase = "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", "")
    bound = bool(spec.get("volumeName"))
    legacy = (obj["metadata"].get("annotations") or {}).get(
        "volume.beta.kubernetes.io/storage-class"
    )
    return [
        _name(obj),
        phase,
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "0") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        legacy or spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or UNSET,
        _age(obj, now),
        spec.get("volumeMode") or UNSET,
    ]


@_of("/persistentvolumes")
def _volume(obj: Obj, now: str) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    phase = "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", "")
    claim = spec.get("claimRef")
    return [
        _name(obj),
        (spec.get("capacity") or {}).get("storage", "0"),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        phase,
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or UNSET,
        status.get("reason", ""),
        _age(obj, now),
        spec.get("volumeMode") or UNSET,
    ]


@_of("storage.k8s.io/storageclasses")
def _storage_class(obj: Obj, now: str) -> list[Any]:
    notes = obj["metadata"].get("annotations") or {}
    name = _name(obj)
    if (
        notes.get("storageclass.kubernetes.io/is-default-class") == "true"
        or notes.get("storageclass.beta.kubernetes.io/is-default-class") == "true"
    ):
        name += " (default)"
    return [
        name,
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        _age(obj, now),
    ]


@_of("storage.k8s.io/csinodes")
def _csi_node(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), len(_spec(obj).get("drivers") or ()), _age(obj, now)]


@_of("storage.k8s.io/csidrivers")
def _csi_driver(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    audiences = [one.get("audience", "") for one in spec.get("tokenRequests") or ()]
    return [
        _name(obj),
        spec.get("attachRequired", True),
        spec.get("podInfoOnMount", False),
        spec.get("storageCapacity", False),
        ",".join(audiences) if spec.get("tokenRequests") else UNSET,
        spec.get("requiresRepublish", False),
        _joined(spec.get("volumeLifecycleModes") or ()),
        _age(obj, now),
    ]


@_of("storage.k8s.io/volumeattachments")
def _attachment(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    return [
        _name(obj),
        spec.get("attacher", ""),
        (spec.get("source") or {}).get("persistentVolumeName", ""),
        spec.get("nodeName", ""),
        bool(_status(obj).get("attached")),
        _age(obj, now),
    ]


@_of("storage.k8s.io/volumeattributesclasses")
def _attributes_class(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), obj.get("driverName", ""), _age(obj, now)]


@_of("policy/poddisruptionbudgets")
def _budget(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    return [
        _name(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        _status(obj).get("disruptionsAllowed", 0),
        _age(obj, now),
    ]


@_of("coordination.k8s.io/leases")
def _lease(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), _spec(obj).get("holderIdentity", ""), _age(obj, now)]


@_of("discovery.k8s.io/endpointslices")
def _endpoint_slice(obj: Obj, now: str) -> list[Any]:
    ports = obj.get("ports")
    shown = (
        _short(["*" if port.get("port") is None else str(port["port"]) for port in ports], UNSET)
        if ports
        else UNSET
    )
    addresses = [
        address for one in obj.get("endpoints") or () for address in one.get("addresses") or ()
    ]
    return [_name(obj), obj.get("addressType", ""), shown, _short(addresses, UNSET), _age(obj, now)]


@_of("/endpoints")
def _endpoints(obj: Obj, now: str) -> list[Any]:
    found = []
    for subset in obj.get("subsets") or ():
        addresses = [one.get("ip", "") for one in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        if not ports:
            found += addresses
        for port in ports:
            found += [f"{address}:{port.get('port')}" for address in addresses]
    return [_name(obj), _short(found, NONE), _age(obj, now)]


def _short(values: list[str], empty: str, most: int = 3) -> str:
    if not values:
        return empty
    text = ",".join(values[:most])
    return f"{text} + {len(values) - most} more..." if len(values) > most else text


@_of("/resourcequotas")
def _quota(obj: Obj, now: str) -> list[Any]:
    status = _status(obj)
    hard: Mapping[str, Any] = status.get("hard") or {}
    used: Mapping[str, Any] = status.get("used") or {}
    requests: list[str] = []
    limits: list[str] = []
    for name in sorted(hard):
        text = f"{name}: {used.get(name, 0)}/{hard[name]}"
        (limits if name.startswith("limits.") else requests).append(text)
    return [_name(obj), ", ".join(requests), ", ".join(limits), _age(obj, now)]


@_of("/podtemplates")
def _pod_template(obj: Obj, _now: str) -> list[Any]:
    template = obj.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    return [_name(obj), *_containers(template.get("spec")), _labels(labels)]


@_of("apps/controllerrevisions")
def _revision(obj: Obj, now: str) -> list[Any]:
    owner = next(
        (one for one in obj["metadata"].get("ownerReferences") or () if one.get("controller")), None
    )
    shown = NONE
    if owner:
        group = owner.get("apiVersion", "").rpartition("/")[0]
        kind = owner["kind"].lower() + (f".{group}" if group else "")
        shown = f"{kind}/{owner['name']}"
    return [_name(obj), shown, obj.get("revision", 0), _age(obj, now)]


@_of("networking.k8s.io/ingresses")
def _ingress(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    hosts = [rule["host"] for rule in spec.get("rules") or () if rule.get("host")]
    found = (_status(obj).get("loadBalancer") or {}).get("ingress") or ()
    return [
        _name(obj),
        spec.get("ingressClassName") or NONE,
        _short(hosts, "*"),
        ",".join(one.get("ip") or one.get("hostname", "") for one in found),
        "80, 443" if spec.get("tls") else "80",
        _age(obj, now),
    ]


@_of("networking.k8s.io/ingressclasses")
def _ingress_class(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    reference = spec.get("parameters")
    shown = NONE
    if reference:
        group = reference.get("apiGroup")
        shown = reference["kind"] + (f".{group}" if group else "") + f"/{reference['name']}"
    return [_name(obj), spec.get("controller", ""), shown, _age(obj, now)]


@_of("networking.k8s.io/networkpolicies")
def _network_policy(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), _labels(_spec(obj).get("podSelector")), _age(obj, now)]


@_of("networking.k8s.io/ipaddresses")
def _address(obj: Obj, _now: str) -> list[Any]:
    parent = _spec(obj).get("parentRef") or {}
    group = parent.get("group")
    place = parent.get("namespace")
    shown = "/".join(
        part
        for part in (
            parent.get("resource", "") + (f".{group}" if group else ""),
            place,
            parent.get("name", ""),
        )
        if part
    )
    return [_name(obj), shown]


@_of("networking.k8s.io/servicecidrs")
def _cidr(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), ",".join(_spec(obj).get("cidrs") or ()), _age(obj, now)]


@_of("rbac.authorization.k8s.io/rolebindings", "rbac.authorization.k8s.io/clusterrolebindings")
def _binding(obj: Obj, now: str) -> list[Any]:
    role = obj.get("roleRef") or {}
    subjects = obj.get("subjects") or ()

    def named(kind: str) -> str:
        return ", ".join(
            f"{one['namespace']}/{one['name']}" if kind == "ServiceAccount" else one["name"]
            for one in subjects
            if one.get("kind") == kind
        )

    return [
        _name(obj),
        f"{role.get('kind', '')}/{role.get('name', '')}",
        _age(obj, now),
        named("User"),
        named("Group"),
        named("ServiceAccount"),
    ]


@_of(
    "admissionregistration.k8s.io/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/validatingwebhookconfigurations",
)
def _webhooks(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), len(obj.get("webhooks") or ()), _age(obj, now)]


@_of("scheduling.k8s.io/priorityclasses")
def _priority_class(obj: Obj, now: str) -> list[Any]:
    return [
        _name(obj),
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        _age(obj, now),
        obj.get("preemptionPolicy", ""),
    ]


@_of("node.k8s.io/runtimeclasses")
def _runtime_class(obj: Obj, now: str) -> list[Any]:
    return [_name(obj), obj.get("handler", ""), _age(obj, now)]


@_of("certificates.k8s.io/certificatesigningrequests")
def _signing_request(obj: Obj, now: str) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    conditions = [one.get("type") for one in status.get("conditions") or ()]
    state = next((one for one in ("Denied", "Approved") if one in conditions), "Pending")
    if "Failed" in conditions:
        state += ",Failed"
    if status.get("certificate"):
        state += ",Issued"
    seconds = spec.get("expirationSeconds")
    return [
        _name(obj),
        _age(obj, now),
        spec.get("signerName") or NONE,
        spec.get("username", ""),
        duration(seconds) if seconds is not None else NONE,
        state,
    ]


@_of("flowcontrol.apiserver.k8s.io/flowschemas")
def _flow_schema(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    missing = next(
        (
            one.get("status")
            for one in _status(obj).get("conditions") or ()
            if one.get("type") == "Dangling"
        ),
        "?",
    )
    return [
        _name(obj),
        (spec.get("priorityLevelConfiguration") or {}).get("name", ""),
        spec.get("matchingPrecedence", 0),
        (spec.get("distinguisherMethod") or {}).get("type") or NONE,
        _age(obj, now),
        missing,
    ]


@_of("flowcontrol.apiserver.k8s.io/prioritylevelconfigurations")
def _priority_level(obj: Obj, now: str) -> list[Any]:
    spec = _spec(obj)
    part = spec.get("limited") or spec.get("exempt") or {}
    queuing = (part.get("limitResponse") or {}).get("queuing") or {}
    return [
        _name(obj),
        spec.get("type", ""),
        part.get("nominalConcurrencyShares", NONE),
        queuing.get("queues", NONE),
        queuing.get("handSize", NONE),
        queuing.get("queueLengthLimit", NONE),
        _age(obj, now),
    ]
