"""Namespaces, Nodes and Leases."""

from __future__ import annotations

import msgspec

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.addresses import validate_network
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.metadata import NOT_QUALIFIED, STANDARD_FINALIZERS
from zonewise.embedded.apiserver.strategy.pod.affinity import TAINT_EFFECTS
from zonewise.embedded.apiserver.strategy.pod.resources import validate_resource_quantity

KEEPER = "kubernetes"
AVOID = "scheduler.alpha.kubernetes.io/preferAvoidPods"


class NamespaceRules(Rules):
    """A namespace stays until its content is deleted: its own finalizers are in its spec."""

    selectable = frozenset({"status.phase"})

    def name_errors(self, name: str) -> list[str]:
        return names.label_errors(name)

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

    def validate(self, obj: Field, context: StrategyContext) -> None:
        """Finalizers of the spec are named like those of metadata."""
        finalizers = obj["spec"]["finalizers"]
        for item in finalizers.each():
            name = item.value
            finalizer = item if context.subresource else finalizers.holding(name)
            if "/" not in name and name not in STANDARD_FINALIZERS:
                finalizer.invalid(NOT_QUALIFIED)
            else:
                finalizer.qualified_name()

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The phase says whether the namespace is terminating, nothing else."""
        phase = obj["status"].get("phase", "").named("Phase")
        is_marked = bool(obj.value["metadata"].get("deletionTimestamp"))
        expected, state = ("Terminating", "not empty") if is_marked else ("Active", "empty")
        if phase.value != expected:
            phase.invalid(f"may only be '{expected}' if `deletionTimestamp` is {state}")

    def on_mark(self, obj: Obj, context: StrategyContext) -> None:
        """A namespace being deleted is Terminating."""
        obj.setdefault("status", {})["phase"] = "Terminating"

    def is_retained(self, obj: Obj) -> bool:
        """It is kept while its spec has finalizers."""
        return bool((obj.get("spec") or {}).get("finalizers"))


class NodeRules(Rules):
    """Nodes: a kubelet that registers brings its status along."""

    takes_status = True
    selectable = frozenset({"spec.unschedulable"})

    def fields(self, obj: Obj) -> dict[str, str]:
        cordoned = (obj.get("spec") or {}).get("unschedulable")
        return {"spec.unschedulable": "true" if cordoned else "false"}

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """The first of a node's address ranges is also there alone."""
        spec = obj.setdefault("spec", {})
        first, ranges = spec.get("podCIDR"), spec.get("podCIDRs")
        if first and (not ranges or ranges[0] != first):
            spec["podCIDRs"] = [first]
        elif ranges and not first:
            spec["podCIDR"] = ranges[0]

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        self.prepare_create(obj, context)

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Dynamic configuration is removed from the API but not from its types."""
        if not (old.get("status") or {}).get("config"):
            obj.setdefault("status", {}).pop("config", None)

    def validate(self, obj: Field, context: StrategyContext) -> None:
        _validate_node(obj)
        ranges = obj["spec"]["podCIDRs"]
        networks = [validate_network(network) for network in ranges.each()]
        versions = [network.version if network else 0 for network in networks]
        if len(versions) > 1:
            if 0 in versions:
                ranges.internal("invalid PodCIDRs")
            if sorted(versions) != [4, 6]:
                ranges.invalid("may specify no more than one CIDR for each IP family")

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """A node's pod CIDRs and provider ID do not change once they are set."""
        spec, old_spec = obj["spec"], old.get("spec") or {}
        for key, reported in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
            if old_spec.get(key) and spec[key].value != old_spec[key]:
                spec[key].forbid(f'node updates may not change {reported} except from "" to valid')
        if spec["externalID"].value != old_spec.get("externalID"):
            spec["externalID"].forbid("may not be updated")
        _validate_node(obj)
        addresses = obj["status"]["addresses"]
        for index, address in enumerate(addresses.each()):
            if address.value in addresses.value[:index]:
                address.duplicate()

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """A status is validated with everything else."""
        self.validate_update(obj, old, context)


def _validate_node(node: Field) -> None:
    meta, status = node["metadata"], node["status"]
    avoided = meta["annotations"][AVOID].value
    if avoided and not is_json_object(avoided):
        meta["annotations"].child("AvoidPods", AVOID).invalid("must be a JSON object")
    _validate_taints(meta.child("taints", node["spec"]["taints"].value))
    for key in ("capacity", "allocatable"):
        for name in status[key].value or ():
            validate_resource_quantity(status[key][name], name)


def is_json_object(text: str | bytes) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False


def _validate_taints(taints: Field) -> None:
    seen: set[tuple[str, str]] = set()
    for taint in taints.each():
        key, effect = taint.get("key", ""), taint.get("effect", "")
        key.qualified_name()
        taint["value"].label_value()
        effect.required().enum(TAINT_EFFECTS)
        if (key.value, effect.value) in seen:
            taint.duplicate()
        seen.add((key.value, effect.value))


class LeaseRules(Rules):
    """The rules of Leases."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        obj["spec"]["leaseDurationSeconds"].positive()
        obj["spec"]["leaseTransitions"].not_negative()
