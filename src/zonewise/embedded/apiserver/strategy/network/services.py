"""Services: families, addresses, node ports, and the fields the sources add.

An update that leaves out what was allocated keeps it; one that makes it meaningless (a type without
node ports, an external name) gives it back. ``allocate`` runs last, when nothing else can refuse
the write.
"""

from __future__ import annotations

from zonewise.api import ObjectMeta, Service, ServiceSpec, field_errors
from zonewise.api.gates import TOPOLOGY_AWARE_HINTS
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.network.allocation import Allocation, Exhausted
from zonewise.embedded.apiserver.strategy.network.service_faults import (
    OUTSIDE,
    added_field_faults,
    address_faults,
    family_of,
    local_balancer,
    policy_faults,
    port_faults,
    type_faults,
)
from zonewise.embedded.apiserver.strategy.warnings import service_warnings
from zonewise.traffic import service_faults


class ServiceRules(Rules):
    """The rules of Services."""

    answers_deleted = True
    creates_on_update = True
    selectable = frozenset({"spec.clusterIP", "spec.type"})

    allocates = True

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none."""
        return names.label(name)

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        spec = obj["spec"]
        return {"spec.clusterIP": spec.get("clusterIP", ""), "spec.type": spec.get("type", "")}

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Complete families and addresses."""
        obj["status"] = {"loadBalancer": {}}
        spec = obj.setdefault("spec", {})
        _drop_gated(spec, None, context)
        _one_and_many(spec, None)
        self._families(spec)

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Keep what was allocated where the new object leaves it out."""
        spec, before = obj.setdefault("spec", {}), old["spec"]
        _drop_gated(spec, before, context)
        _keep_allocated(spec, before)
        _one_and_many(spec, before)
        _drop_meaningless(spec, before)
        self._families(spec)

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a Service."""
        return self._faults(obj) + service_faults(_hinting(obj))

    def _faults(self, obj: Obj) -> Faults:
        spec = obj["spec"]
        found = port_faults(spec)
        found += address_faults(spec)
        found += self._family_faults(spec)
        found += type_faults(spec)
        found += policy_faults(spec)
        if spec.get("selector"):
            found += metadata.label_faults("spec.selector", spec["selector"])
        return found + added_field_faults(obj)

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """Only a load balancer has been given addresses by one."""
        balancer = (obj.get("status") or {}).get("loadBalancer") or {}
        before = (old.get("status") or {}).get("loadBalancer") or {}
        ingress = balancer.get("ingress")
        if not ingress or obj["spec"].get("type") == "LoadBalancer":
            return []
        if ingress == before.get("ingress"):
            return []
        text = 'may only be used when `spec.type` is "LoadBalancer"'
        return [field_errors.forbidden("status.loadBalancer.ingress", text)]

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What an update may not change."""
        spec, before = obj["spec"], old["spec"]
        found: Faults = []
        if spec.get("type") != "ExternalName" and before.get("type") != "ExternalName":
            was, now = before.get("clusterIPs") or [], spec.get("clusterIPs") or []
            if was and now and was[0] != now[0]:
                found.append(
                    field_errors.invalid("spec.clusterIPs[0]", now, "may not change once set")
                )
            if len(was) > 1 and len(now) > 1 and was[1] != now[1]:
                found.append(
                    field_errors.invalid("spec.clusterIPs[1]", now, "may not change once set")
                )
        if local_balancer(spec) and local_balancer(before):
            check = "healthCheckNodePort"
            if spec.get(check) != before.get(check):
                found.append(field_errors.forbidden(f"spec.{check}", "field is immutable"))
        if spec.get("type") == before.get("type") == "LoadBalancer":
            was, now = before.get("loadBalancerClass"), spec.get("loadBalancerClass")
            if was != now:
                found.append(
                    field_errors.invalid("spec.loadBalancerClass", now, "may not change once set")
                )
        return found + self._faults(obj) + service_faults(_hinting(obj), _hinting(old))

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Addresses that are old, oddly written or without effect; a policy whose gate is off."""
        context.warnings.extend(service_warnings(obj))
        if (
            obj["spec"].get("trafficPolicy") == "PreferZone"
            and not context.gates[TOPOLOGY_AWARE_HINTS]
        ):
            context.warnings.append(
                "spec.trafficPolicy: PreferZone has no effect while the feature gate"
                f" {TOPOLOGY_AWARE_HINTS} is off"
            )

    def allocate(self, obj: Obj, old: Obj | None, context: StrategyContext) -> Faults:
        """Take addresses and node ports, the requested ones or any."""
        spec = obj["spec"]
        meta = obj["metadata"]
        holder = (meta["namespace"], meta["name"])
        try:
            found = self._take_addresses(spec, holder) + self._take_ports(spec, holder)
        except Exhausted as error:
            return [field_errors.forbidden("spec", str(error))]
        if not found and not context.dry_run:
            self._allocation.hold(holder, spec)
        return found

    def settled(self, namespace: str, name: str, obj: Obj | None) -> None:
        """What a Service holds is what is stored."""
        self._allocation.hold((namespace, name), obj["spec"] if obj else None)

    def _families(self, spec: Obj) -> None:
        if spec.get("type") == "ExternalName":
            return
        have = self._allocation.families
        chosen = list(spec.get("ipFamilies") or ())
        for address in spec.get("clusterIPs") or ():
            family = family_of(address)
            if family and family not in chosen:
                chosen.append(family)
        open_headless = spec.get("clusterIP") == "None" and not spec.get("selector")
        policy = spec.get("ipFamilyPolicy")
        if not policy:
            if open_headless and not spec.get("ipFamilies"):
                policy = "RequireDualStack"
            else:
                policy = "RequireDualStack" if len(chosen) > 1 else "SingleStack"
            spec["ipFamilyPolicy"] = policy
        if not chosen:
            chosen.append(have[0])
        if policy != "SingleStack" and len(chosen) == 1:
            other = "IPv6" if chosen[0] == "IPv4" else "IPv4"
            if other in have or open_headless:
                chosen.append(other)
        spec["ipFamilies"] = chosen

    def _family_faults(self, spec: Obj) -> Faults:
        if spec.get("type") == "ExternalName":
            return []
        found: Faults = []
        have = self._allocation.families
        families = spec.get("ipFamilies") or ()
        policy = spec.get("ipFamilyPolicy", "")
        open_headless = spec.get("clusterIP") == "None" and not spec.get("selector")
        known = all(family in {"IPv4", "IPv6"} for family in families)
        if policy not in {"SingleStack", "PreferDualStack", "RequireDualStack"}:
            supported = ("PreferDualStack", "RequireDualStack", "SingleStack")
            found.append(field_errors.unsupported("spec.ipFamilyPolicy", policy, supported))
        elif policy == "RequireDualStack" and len(have) < 2 and known and not open_headless:
            text = "this cluster is not configured for dual-stack services"
            found.append(field_errors.invalid("spec.ipFamilyPolicy", policy, text))
        elif policy == "SingleStack" and len(set(families)) > 1:
            text = (
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are"
                " specified"
            )
            found.append(field_errors.invalid("spec.ipFamilyPolicy", policy, text))
        for index, family in enumerate(families):
            path = f"spec.ipFamilies[{index}]"
            if family not in {"IPv4", "IPv6"}:
                found.append(field_errors.unsupported(path, family, ("IPv4", "IPv6")))
            elif families.index(family) != index:
                found.append(field_errors.duplicate(path, family))
            elif family not in have and not open_headless:
                found.append(field_errors.invalid(path, family, "not configured on this cluster"))
        return found

    def _take_addresses(self, spec: Obj, holder: tuple[str, str]) -> Faults:
        addresses = spec.get("clusterIPs") or []
        if spec.get("type") == "ExternalName" or addresses[:1] == ["None"]:
            return []
        chosen: list[str] = []
        for index, family in enumerate(spec["ipFamilies"]):
            if index < len(addresses):
                why = self._allocation.fault(addresses[index], family, holder)
                if why:
                    text = f"failed to allocate IP {addresses[index]}: {why}"
                    return [field_errors.invalid("spec.clusterIPs", addresses, text)]
                chosen.append(addresses[index])
            else:
                chosen.append(self._allocation.address(family))
        spec["clusterIP"], spec["clusterIPs"] = chosen[0], chosen
        return []

    def _take_ports(self, spec: Obj, holder: tuple[str, str]) -> Faults:
        found: Faults = []
        if _wants_node_ports(spec):
            mine: dict[int, set[str]] = {}
            for index, port in enumerate(spec.get("ports") or ()):
                number, protocol = port.get("nodePort"), port.get("protocol", "TCP")
                if number:
                    why = self._allocation.port_fault(number, protocol, holder)
                    if not why and protocol in mine.get(number, ()):
                        why = "provided port is already allocated"
                    if why:
                        found.append(
                            field_errors.invalid(f"spec.ports[{index}].nodePort", number, why)
                        )
                    mine.setdefault(number, set()).add(protocol)
            for port in spec.get("ports") or ():
                if not port.get("nodePort"):
                    port["nodePort"] = self._allocation.port(set(mine))
                    mine.setdefault(port["nodePort"], set()).add(port.get("protocol", "TCP"))
        if local_balancer(spec):
            number = spec.get("healthCheckNodePort")
            if not number:
                spec["healthCheckNodePort"] = self._allocation.port(
                    {port.get("nodePort", 0) for port in spec.get("ports") or ()}
                )
            elif why := self._allocation.port_fault(number, "TCP", holder):
                found.append(field_errors.invalid("spec.healthCheckNodePort", number, why))
        return found


def _one_and_many(spec: Obj, before: Obj | None) -> None:
    """``clusterIP`` is the first of ``clusterIPs``; a client may set either."""
    one, many = spec.get("clusterIP"), spec.get("clusterIPs")
    if before is not None and before.get("clusterIP") != one and many == before.get("clusterIPs"):
        many = None
    if one and not many:
        spec["clusterIPs"] = [one]
    elif not one:
        if many and before is None:
            spec["clusterIP"] = many[0]
        elif many:
            spec.pop("clusterIPs")


def _keep_allocated(spec: Obj, before: Obj) -> None:
    kinds = {"ClusterIP", *OUTSIDE}
    if spec.get("type") in kinds and before.get("type") in kinds:
        if not spec.get("clusterIP") and before.get("clusterIP"):
            spec["clusterIP"] = before["clusterIP"]
        if not spec.get("clusterIPs") and spec.get("clusterIP") == before.get("clusterIP"):
            spec["clusterIPs"] = before.get("clusterIPs") or []
        if not spec.get("ipFamilies") and before.get("ipFamilies"):
            spec["ipFamilies"] = before["ipFamilies"]
        if not spec.get("ipFamilyPolicy") and before.get("ipFamilyPolicy"):
            spec["ipFamilyPolicy"] = before["ipFamilyPolicy"]
    if spec.get("type") in OUTSIDE and before.get("type") in OUTSIDE:
        held = {
            (port.get("port"), port.get("protocol"), port.get("name")): port.get("nodePort")
            for port in before.get("ports") or ()
        }
        used = {port.get("nodePort") for port in spec.get("ports") or ()}
        for port in spec.get("ports") or ():
            number = held.get((port.get("port"), port.get("protocol"), port.get("name")))
            if not port.get("nodePort") and number and number not in used:
                port["nodePort"] = number
                used.add(number)
        leftover = [
            port.get("nodePort")
            for port in before.get("ports") or ()
            if port.get("nodePort") and port.get("nodePort") not in used
        ]
        bare = [port for port in spec.get("ports") or () if not port.get("nodePort")]
        if len(bare) == len(leftover) == 1:
            bare[0]["nodePort"] = leftover[0]
    if local_balancer(spec) and local_balancer(before) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before.get("healthCheckNodePort")


def _drop_meaningless(spec: Obj, before: Obj) -> None:
    """What only the old type needed is removed, unless the client changed it."""
    kind = spec.get("type")
    if kind == before.get("type") and local_balancer(spec) == local_balancer(before):
        return
    if kind == "ExternalName" and before.get("type") != "ExternalName":
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if spec.get(key) == before.get(key):
                spec.pop(key, None)
        if spec.get("internalTrafficPolicy") == before.get("internalTrafficPolicy"):
            spec.pop("internalTrafficPolicy", None)
    if kind not in OUTSIDE and before.get("type") in OUTSIDE:
        numbers = {port.get("nodePort") for port in before.get("ports") or ()}
        for port in spec.get("ports") or ():
            if port.get("nodePort") in numbers:
                port.pop("nodePort", None)
        if spec.get("externalTrafficPolicy") == before.get("externalTrafficPolicy"):
            spec.pop("externalTrafficPolicy", None)
    if not local_balancer(spec) and spec.get("healthCheckNodePort") == before.get(
        "healthCheckNodePort"
    ):
        spec.pop("healthCheckNodePort", None)
    if kind != "LoadBalancer" and before.get("type") == "LoadBalancer":
        for key in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
            if spec.get(key) == before.get(key):
                spec.pop(key, None)


def _drop_gated(spec: Obj, before: Obj | None, context: StrategyContext) -> None:
    """A field whose gate is off is dropped, unless it was set already."""
    for key, gate in (
        ("topologyKeys", "ServiceTopology"),
        ("trafficPolicy", "ServiceTrafficPolicy"),
    ):
        if key in spec and not context.gates[gate] and not (before and key in before):
            del spec[key]
            context.warnings.append(f"spec.{key} is ignored: its feature gate {gate} is off")


def _wants_node_ports(spec: Obj) -> bool:
    if spec.get("type") == "NodePort":
        return True
    return spec.get("type") == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True)


def _hinting(obj: Obj) -> Service:
    """A Service as far as the rules on hints and topology keys look."""
    spec = obj["spec"]
    return Service(
        metadata=ObjectMeta(annotations=obj["metadata"].get("annotations") or {}),
        spec=ServiceSpec(
            external_traffic_policy=spec.get("externalTrafficPolicy", ""),
            traffic_policy=spec.get("trafficPolicy"),
            topology_keys=tuple(spec.get("topologyKeys") or ()),
        ),
    )
