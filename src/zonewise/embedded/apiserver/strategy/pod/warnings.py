"""What is allowed about pods but probably not meant, or not for much longer: Warning headers.

Only objects that are accepted are warned of. Most pods have nothing of all this, so every check
first tests whether its field is set.
"""

from __future__ import annotations

from typing import Any

from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy.base import Obj, StrategyContext
from zonewise.embedded.apiserver.strategy.pod.affinity import PREFERRED, REQUIRED
from zonewise.embedded.apiserver.strategy.pod.spec import SECCOMP_CONTAINER, SECCOMP_POD

OLD_LABELS = {
    f"{old}": f'deprecated since {since}; use "{new}" instead'
    for old, since, new in (
        ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
        ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
        (
            "failure-domain.beta.kubernetes.io/region",
            "v1.17",
            "topology.kubernetes.io/region",
        ),
        ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
        ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
    )
} | {
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": (
        "deprecated since v1.22; use Taints and Tolerations instead"
    ),
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
OLD_VOLUMES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
OLD_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": (
        'non-functional in v1.16+; use the "priorityClassName" field instead'
    ),
    "security.alpha.kubernetes.io/sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
    "security.alpha.kubernetes.io/unsafe-sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
}
SECCOMP_TEXT = 'non-functional in v1.27+; use the "seccompProfile" field instead'
BYTES = ("memory", "ephemeral-storage")
NAME_LIMIT = 63
NO_SELECTOR = "a null labelSelector results in matching no pod"


def warn_of_name(obj: Obj, context: StrategyContext, what: str) -> None:
    """A name that is fine for the object and no host name."""
    name = obj["metadata"].get("name", "")
    wrong = []
    if len(name) > NAME_LIMIT:
        wrong.append(f"must be no more than {NAME_LIMIT} characters")
    if "." in name:
        wrong.append("must not contain dots")
    if wrong:
        context.warnings.append(
            f"metadata.name: this is used in {what}, which can result in surprising behavior;"
            f" a DNS label is recommended: [{' '.join(wrong)}]"
        )


def warn_of_workload(
    obj: Obj,
    old: Obj | None,
    context: StrategyContext,
    *,
    named: bool = True,
    path: str = "spec.template",
) -> None:
    """What is odd about an object that makes pods, when it is new or changed."""
    top = path.partition(".")[0]
    if old is not None and obj.get(top) == old.get(top):
        return
    if old is None and named:
        warn_of_name(obj, context, "Pod names and hostnames")
    template: Any = obj
    for step in path.split("."):
        template = template.get(step) or {}
    context.warnings.extend(pod_warnings(template, f"{path}."))


def pod_warnings(pod: Obj, path: str = "") -> list[str]:
    """What is odd about a pod; ``path`` is where it is, with a dot at its end."""
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    found: list[str] = []
    at = f"{path}spec"
    for key in spec.get("nodeSelector") or ():
        if key in OLD_LABELS:
            found.append(f"{at}.nodeSelector[{key}]: {OLD_LABELS[key]}")
    if spec.get("affinity"):
        found += _node_warnings(spec["affinity"].get("nodeAffinity") or {}, f"{at}.affinity")
    for index, one in enumerate(spec.get("topologySpreadConstraints") or ()):
        place = f"{at}.topologySpreadConstraints[{index}]"
        key = one.get("topologyKey", "")
        if key in OLD_LABELS:
            found.append(f"{place}.topologyKey: {key} is {OLD_LABELS[key]}")
        if one.get("labelSelector") is None:
            found.append(f"{place}.labelSelector: {NO_SELECTOR}")
    annotations = meta.get("annotations") or {}
    if annotations:
        for key, text in OLD_ANNOTATIONS.items():
            if key in annotations:
                found.append(f"{path}metadata.annotations[{key}]: {text}")
    for index, volume in enumerate(spec.get("volumes") or ()):
        for key in volume.keys() & OLD_VOLUMES.keys():
            name = "storageOS" if key == "storageos" else key
            found.append(f"{at}.volumes[{index}].{name}: {OLD_VOLUMES[key]}")
        if "projected" in volume and not any(volume["projected"].get("sources") or ()):
            found.append(f'volume "{volume.get("name", "")}" (Projected) has no sources provided')
    found += _repeated(spec, at)
    if SECCOMP_POD in annotations and not (spec.get("securityContext") or {}).get("seccompProfile"):
        found.append(f"{path}metadata.annotations[{SECCOMP_POD}]: {SECCOMP_TEXT}")
    for place, one in containers(spec, at):
        key = f"{SECCOMP_CONTAINER}{one.get('name', '')}"
        if key in annotations and not (one.get("securityContext") or {}).get("seccompProfile"):
            found.append(f"{path}metadata.annotations[{key}]: {SECCOMP_TEXT}")
        if one.get("resources"):
            found += _fractions(one["resources"], f"{place}.resources")
        if len(one.get("env") or ()) > 1:
            found += _hidden(one["env"], f"{place}.env")
    found += _port_warnings(spec, at)
    if path and spec.get("terminationGracePeriodSeconds", 0) < 0:
        text = "must be >= 0; negative values are invalid and will be treated as 1"
        found.append(f"{at}.terminationGracePeriodSeconds: {text}")
    if spec.get("affinity"):
        found += _pod_affinity(spec["affinity"], f"{at}.affinity")
    return found


def containers(spec: Obj, path: str) -> list[tuple[str, Obj]]:
    """All containers of a pod with their paths, in the order a server visits them."""
    return [
        (f"{path}.{group}[{index}]", one)
        for group in ("initContainers", "containers", "ephemeralContainers")
        if spec.get(group)
        for index, one in enumerate(spec[group])
    ]


def _node_warnings(affinity: Obj, path: str) -> list[str]:
    found = []
    terms = [
        (f"{path}.nodeAffinity.{REQUIRED}.nodeSelectorTerms[{index}]", term)
        for index, term in enumerate((affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ())
    ]
    terms += [
        (f"{path}.nodeAffinity.{PREFERRED}[{index}].preference", one.get("preference") or {})
        for index, one in enumerate(affinity.get(PREFERRED) or ())
    ]
    for place, term in terms:
        for index, one in enumerate(term.get("matchExpressions") or ()):
            key = one.get("key", "")
            if key in OLD_LABELS:
                at = f"{place}.matchExpressions[{index}].key"
                found.append(f"{at}: {key} is {OLD_LABELS[key]}")
            if REQUIRED in place:
                continue
            for number, value in enumerate(one.get("values") or ()):
                at = f"{place}.matchExpressions[{index}].values[{number}]"
                found += [
                    f"{at}: {value} is invalid, {text}" for text in names.label_value_errors(value)
                ]
    return found


def _pod_affinity(affinity: Obj, path: str) -> list[str]:
    found = []
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        for index, term in enumerate(terms.get(REQUIRED) or ()):
            if term.get("labelSelector") is None:
                found.append(f"{path}.{kind}.{REQUIRED}[{index}].labelSelector: {NO_SELECTOR}")
        for index, one in enumerate(terms.get(PREFERRED) or ()):
            if (one.get("podAffinityTerm") or {}).get("labelSelector") is None:
                at = f"{path}.{kind}.{PREFERRED}[{index}].podAffinityTerm.labelSelector"
                found.append(f"{at}: {NO_SELECTOR}")
    return found


def _repeated(spec: Obj, path: str) -> list[str]:
    found = []
    for group, key in (("hostAliases", "ip"), ("imagePullSecrets", "name")):
        seen: set[str] = set()
        for index, one in enumerate(spec.get(group) or ()):
            value = one.get(key, "")
            if value in seen:
                found.append(f'{path}.{group}[{index}].{key}: duplicate {key} "{value}"')
            seen.add(value)
    for index, one in enumerate(spec.get("imagePullSecrets") or ()):
        if not one.get("name"):
            found.append(f'{path}.imagePullSecrets[{index}].name: invalid empty name ""')
    return found


def _fractions(resources: Obj, path: str) -> list[str]:
    found = []
    for name in BYTES:
        for side in ("limits", "requests"):
            text = (resources.get(side) or {}).get(name)
            if text is not None and text.endswith(("m", "u", "n")):
                if quantity.milli(text) % 1000 == 0:
                    continue
                why = f'fractional byte value "{text}" is invalid, must be an integer'
                found.append(f"{path}.{side}[{name}]: {why}")
    return found


def _hidden(variables: list[Obj], path: str) -> list[str]:
    found = []
    seen: set[str] = set()
    for index, one in enumerate(variables):
        name, value = one.get("name", ""), one.get("value", "")
        reference = f"$({name})"
        if name in seen and (
            one.get("valueFrom") is not None or value == reference or reference not in value
        ):
            text = f'hides previous definition of "{name}", which may be dropped when using apply'
            found.append(f"{path}[{index}]: {text}")
        seen.add(name)
    return found


def _port_warnings(spec: Obj, path: str) -> list[str]:
    found: list[str] = []
    ports = [
        (f"{place}.ports[{index}]", port)
        for place, one in containers(spec, path)
        if one.get("ports")
        for index, port in enumerate(one["ports"])
    ]
    if not ports:
        return found
    known: dict[Any, list[tuple[str, Obj]]] = {}
    for at, port in ports:
        key = (port.get("containerPort"), port.get("protocol"))
        for other_at, other in known.setdefault(key, []):
            mine = port.get("hostIP", ""), port.get("hostPort", 0)
            theirs = other.get("hostIP", ""), other.get("hostPort", 0)
            if mine == theirs:
                found.append(f"{at}: duplicate port definition with {other_at}")
            elif not mine[1] or not theirs[1]:
                found.append(f"{at}: overlapping port definition with {other_at}")
            elif mine[1] == theirs[1] and bool(mine[0]) != bool(theirs[0]):
                found.append(f"{at}: dangerously ambiguous port definition with {other_at}")
        known[key].append((at, port))
    named: dict[str, str] = {}
    for at, port in ports:
        name = port.get("name")
        if not name:
            continue
        first = named.setdefault(name, at)
        if first != at:
            found.append(
                f'{at}: duplicate port name "{name}" with {first}, services and probes that select'
                f" ports by name will use {first}"
            )
    return found
