"""Namespaces and Nodes."""

from __future__ import annotations

import ipaddress

import msgspec

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext
from zonewise.embedded.apiserver.strategy.cluster.quotas import amount_faults

KEEPER = "kubernetes"
EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
AVOID = "scheduler.alpha.kubernetes.io/preferAvoidPods"


class NamespaceRules(LegacyRules):
    """A namespace stays until its content is deleted: its own finalizers are in its spec."""

    selectable = frozenset({"status.phase"})

    def name_errors(self, name: str) -> list[str]:
        """What is wrong with the name of an object."""
        return names.label_errors(name)

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        return {"status.phase": (obj.get("status") or {}).get("phase", "")}

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new namespace is active and keeps itself."""
        finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
        if KEEPER not in finalizers:
            finalizers.append(KEEPER)
        obj["status"] = {"phase": "Active"}

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Only ``finalize`` changes the finalizers of the spec."""
        if context.subresource != "finalize":
            obj["spec"] = old.get("spec") or {}

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """Finalizers of the spec are named like those of metadata."""
        found: Faults = []
        for index, name in enumerate((obj.get("spec") or {}).get("finalizers") or ()):
            path = f"spec.finalizers[{index}]" if context.subresource else "spec.finalizers"
            texts = metadata.qualified_name(name)
            if "/" not in name and name not in metadata.STANDARD_FINALIZERS:
                texts = ["name is neither a standard finalizer name nor is it fully qualified"]
            found += [field_errors.invalid(path, name, text) for text in texts]
        return found

    def find_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The phase says whether the namespace is terminating, nothing else."""
        phase = (obj.get("status") or {}).get("phase", "")
        marked = bool(obj["metadata"].get("deletionTimestamp"))
        expected = "Terminating" if marked else "Active"
        if phase == expected:
            return []
        state = "not empty" if marked else "empty"
        text = f"may only be '{expected}' if `deletionTimestamp` is {state}"
        return [field_errors.invalid("status.Phase", phase, text)]

    def on_mark(self, obj: Obj, context: StrategyContext) -> None:
        """A namespace being deleted is Terminating."""
        obj.setdefault("status", {})["phase"] = "Terminating"

    def held(self, obj: Obj) -> bool:
        """It is kept while its spec has finalizers."""
        return bool((obj.get("spec") or {}).get("finalizers"))


class NodeRules(LegacyRules):
    """Nodes: a kubelet that registers brings its status along."""

    takes_status = True
    selectable = frozenset({"spec.unschedulable"})

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        cordoned = (obj.get("spec") or {}).get("unschedulable")
        return {"spec.unschedulable": "true" if cordoned else "false"}

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Of the ranges of addresses the first is also there alone."""
        _one_and_many(obj.setdefault("spec", {}))

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """The same."""
        _one_and_many(obj.setdefault("spec", {}))

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Dynamic configuration is removed from the API but not from its types."""
        if not (old.get("status") or {}).get("config"):
            obj.setdefault("status", {}).pop("config", None)

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a Node."""
        spec = obj.get("spec") or {}
        found = _avoid_faults(obj["metadata"].get("annotations") or {})
        found += _taint_faults(spec.get("taints") or [])
        found += _amount_faults(obj.get("status") or {})
        return found + _range_faults(spec.get("podCIDRs") or [])

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """A node's pod CIDRs and provider ID do not change once they are set."""
        found: Faults = []
        spec, before = obj.get("spec") or {}, old.get("spec") or {}
        if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
            text = 'node updates may not change podCIDR except from "" to valid'
            found.append(field_errors.forbidden("spec.podCIDRs", text))
        if before.get("providerID") and spec.get("providerID") != before["providerID"]:
            text = 'node updates may not change providerID except from "" to valid'
            found.append(field_errors.forbidden("spec.providerID", text))
        if spec.get("externalID") != before.get("externalID"):
            found.append(field_errors.forbidden("spec.externalID", "may not be updated"))
        found += _avoid_faults(obj["metadata"].get("annotations") or {})
        found += _taint_faults(spec.get("taints") or [])
        found += _amount_faults(obj.get("status") or {})
        addresses = (obj.get("status") or {}).get("addresses") or []
        for index, address in enumerate(addresses):
            if address in addresses[:index]:
                found.append(field_errors.duplicate(f"status.addresses[{index}]", address))
        return found

    def find_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """A status is judged with everything else."""
        return self.find_update(obj, old, context)


def _one_and_many(spec: Obj) -> None:
    one, many = spec.get("podCIDR"), spec.get("podCIDRs")
    if one and (not many or many[0] != one):
        spec["podCIDRs"] = [one]
    elif many and not one:
        spec["podCIDR"] = many[0]


def _avoid_faults(annotations: dict[str, str]) -> Faults:
    text = annotations.get(AVOID)
    if not text:
        return []
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return []
    except msgspec.DecodeError:
        pass
    return [field_errors.invalid("metadata.annotations.AvoidPods", AVOID, "must be a JSON object")]


def _taint_faults(taints: list[Obj]) -> Faults:
    found: Faults = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        path = f"metadata.taints[{index}]"
        key, value, effect = taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")
        found += [
            field_errors.invalid(f"{path}.key", key, text) for text in metadata.qualified_name(key)
        ]
        found += [
            field_errors.invalid(f"{path}.value", value, text)
            for text in metadata.label_value(value)
        ]
        if not effect:
            found.append(field_errors.required(f"{path}.effect"))
        elif effect not in EFFECTS:
            found.append(field_errors.unsupported(f"{path}.effect", effect, EFFECTS))
        if (key, effect) in seen:
            found.append(field_errors.duplicate(path, taint))
        seen.add((key, effect))
    return found


def _amount_faults(status: Obj) -> Faults:
    return [
        fault
        for where in ("capacity", "allocatable")
        for name, value in (status.get(where) or {}).items()
        for fault in amount_faults(f"status.{where}.{name}", name, value)
    ]


def _range_faults(ranges: list[str]) -> Faults:
    found: Faults = []
    versions: list[int] = []
    for index, text in enumerate(ranges):
        try:
            versions.append(ipaddress.ip_network(text, strict=False).version)
        except ValueError:
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            found.append(field_errors.invalid(f"spec.podCIDRs[{index}]", text, why))
    if len(ranges) > 1:
        if found:
            found.append(field_errors.internal("spec.podCIDRs", "invalid PodCIDRs"))
        if found or sorted(versions) != [4, 6]:
            why = "may specify no more than one CIDR for each IP family"
            found.append(field_errors.invalid("spec.podCIDRs", ranges, why))
    return found
