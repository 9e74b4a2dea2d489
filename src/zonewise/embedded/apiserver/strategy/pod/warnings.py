"""What is allowed about pods but probably not meant, or not for much longer: Warning headers.

Only objects that are accepted are warned of. Most pods have nothing of all this, so every check
first tests whether its field is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zonewise.api.field_cursor import Field
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy.base import Obj, StrategyContext
from zonewise.embedded.apiserver.strategy.pod.affinity import PREFERRED, REQUIRED
from zonewise.embedded.apiserver.strategy.pod.security import every_container
from zonewise.embedded.apiserver.strategy.pod.spec import SECCOMP_CONTAINER, SECCOMP_POD

OLD_LABELS = {
    old: f'deprecated since {since}; use "{new}" instead'
    for old, since, new in (
        ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
        ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
        ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
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
    key: f'non-functional in {since}+; use the "{field}" field instead'
    for key, since, field in (
        ("scheduler.alpha.kubernetes.io/critical-pod", "v1.16", "priorityClassName"),
        ("security.alpha.kubernetes.io/sysctls", "v1.11", "sysctls"),
        ("security.alpha.kubernetes.io/unsafe-sysctls", "v1.11", "sysctls"),
    )
}
SECCOMP_TEXT = 'non-functional in v1.27+; use the "seccompProfile" field instead'
BYTES = ("memory", "ephemeral-storage")
NAME_LIMIT = 63
NO_SELECTOR = "a null labelSelector results in matching no pod"


def warn_of_name(obj: Obj, context: StrategyContext, what: str) -> None:
    """A name that is valid for the object, but not as a host name."""
    name = obj["metadata"].get("name", "")
    details = []
    if len(name) > NAME_LIMIT:
        details.append(f"must be no more than {NAME_LIMIT} characters")
    if "." in name:
        details.append("must not contain dots")
    if details:
        context.warnings.append(
            f"metadata.name: this is used in {what}, which can result in surprising behavior;"
            f" a DNS label is recommended: [{' '.join(details)}]"
        )


def pod_warnings(pod: Obj, path: str = "") -> Iterator[str]:
    """What is odd about a pod; ``path`` is where its template is, empty for a pod itself."""
    root = Field(pod, [], path)
    spec, annotations = root["spec"], root["metadata"]["annotations"]
    fields = spec.value or {}
    if fields.get("nodeSelector"):
        for key, label in spec["nodeSelector"].entries():
            if key in OLD_LABELS:
                yield f"{label.path}: {OLD_LABELS[key]}"
    if fields.get("affinity"):
        yield from _node_affinity_warnings(spec["affinity"]["nodeAffinity"])
    for constraint in spec["topologySpreadConstraints"].each():
        yield from old_label_warnings(constraint["topologyKey"])
        yield from _selector_warnings(constraint)
    if annotations.value:
        for key, text in OLD_ANNOTATIONS.items():
            if key in annotations.value:
                yield f"{annotations.entry(key).path}: {text}"
    for volume in spec["volumes"].each():
        for key in volume.value.keys() & OLD_VOLUMES.keys():
            yield source_warning(volume[key])
        if "projected" in volume.value and not any(volume["projected"]["sources"].value or ()):
            yield f'volume "{volume.value.get("name", "")}" (Projected) has no sources provided'
    if fields.get("hostAliases"):
        yield from _duplicates(spec["hostAliases"], "ip")
    if fields.get("imagePullSecrets"):
        yield from _duplicates(spec["imagePullSecrets"], "name")
        for secret in spec["imagePullSecrets"].each():
            if not secret.value.get("name"):
                yield f'{secret["name"].path}: invalid empty name ""'
    yield from _seccomp_warnings(annotations, SECCOMP_POD, fields)
    for container in every_container(spec):
        own = container.value
        yield from _seccomp_warnings(annotations, f"{SECCOMP_CONTAINER}{own.get('name', '')}", own)
        if own.get("resources"):
            yield from _fractions(container["resources"])
        if len(own.get("env") or ()) > 1:
            yield from _hidden_variables(container["env"])
    yield from _port_warnings(spec)
    if path and fields.get("terminationGracePeriodSeconds", 0) < 0:
        yield (
            f"{spec.path}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid"
            " and will be treated as 1"
        )
    if fields.get("affinity"):
        for key in ("podAffinity", "podAntiAffinity"):
            for term in spec["affinity"][key][REQUIRED].each():
                yield from _selector_warnings(term)
            for term in spec["affinity"][key][PREFERRED].each():
                yield from _selector_warnings(term["podAffinityTerm"])


def old_label_warnings(key: Field) -> Iterator[str]:
    """The label of a node that was renamed."""
    if key.value in OLD_LABELS:
        yield f"{key.path}: {key.value} is {OLD_LABELS[key.value]}"


def source_warning(source: Field) -> str:
    """The source of a volume that was removed, or will be."""
    name = str(source.key)
    source = source.named("storageOS") if name == "storageos" else source
    return f"{source.path}: {OLD_VOLUMES[name]}"


def _selector_warnings(term: Field) -> Iterator[str]:
    if term["labelSelector"].value is None:
        yield f"{term.path}.labelSelector: {NO_SELECTOR}"


def _seccomp_warnings(annotations: Field, key: str, holder: Obj) -> Iterator[str]:
    has_field = (holder.get("securityContext") or {}).get("seccompProfile")
    if key in (annotations.value or ()) and not has_field:
        yield f"{annotations.entry(key).path}: {SECCOMP_TEXT}"


def _node_affinity_warnings(affinity: Field) -> Iterator[str]:
    for term in affinity[REQUIRED]["nodeSelectorTerms"].each():
        for expression in term["matchExpressions"].each():
            yield from old_label_warnings(expression["key"])
    for term in affinity[PREFERRED].each():
        for expression in term["preference"]["matchExpressions"].each():
            yield from old_label_warnings(expression["key"])
            for value in expression["values"].each():
                for detail in names.label_value_errors(value.value):
                    yield f"{value.path}: {value.value} is invalid, {detail}"


def _duplicates(items: Field, key: str) -> Iterator[str]:
    seen: set[str] = set()
    for item in items.each():
        value = item.value.get(key, "")
        if value in seen:
            yield f'{item.path}.{key}: duplicate {key} "{value}"'
        seen.add(value)


def _fractions(resources: Field) -> Iterator[str]:
    for name in BYTES:
        for side in ("limits", "requests"):
            text = (resources.value.get(side) or {}).get(name)
            if text and text.endswith(("m", "u", "n")) and quantity.milli(text) % 1000:
                yield fraction_warning(resources[side].entry(name))


def fraction_warning(size: Field) -> str:
    """A number of bytes that is not an integer."""
    return f'{size.path}: fractional byte value "{size.value}" is invalid, must be an integer'


def _hidden_variables(variables: Field) -> Iterator[str]:
    seen: set[str] = set()
    for variable in variables.each():
        name, value = variable.value.get("name", ""), variable.value.get("value", "")
        reference = f"$({name})"
        if name in seen and (
            variable.value.get("valueFrom") is not None
            or value == reference
            or reference not in value
        ):
            yield (
                f'{variable.path}: hides previous definition of "{name}", which may be dropped'
                " when using apply"
            )
        seen.add(name)


def _port_warnings(spec: Field) -> Iterator[str]:
    ports = [port for container in every_container(spec) for port in container["ports"].each()]
    by_number: dict[Any, list[Field]] = {}
    for port in ports:
        others = by_number.setdefault(
            (port.value.get("containerPort"), port.value.get("protocol")), []
        )
        for other in others:
            address, number = port.value.get("hostIP", ""), port.value.get("hostPort", 0)
            other_address = other.value.get("hostIP", "")
            other_number = other.value.get("hostPort", 0)
            if (address, number) == (other_address, other_number):
                clash = "duplicate"
            elif not number or not other_number:
                clash = "overlapping"
            elif number == other_number and bool(address) != bool(other_address):
                clash = "dangerously ambiguous"
            else:
                continue
            yield f"{port.path}: {clash} port definition with {other.path}"
        others.append(port)
    by_name: dict[str, Field] = {}
    for port in ports:
        name = port.value.get("name")
        first = by_name.setdefault(name, port) if name else port
        if first is not port:
            yield (
                f'{port.path}: duplicate port name "{name}" with {first.path}, services and probes'
                f" that select ports by name will use {first.path}"
            )
