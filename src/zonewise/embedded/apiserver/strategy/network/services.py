"""Services: families, addresses, node ports, and the fields the sources add.

An update that leaves out what was allocated keeps it; one that makes it meaningless (a type without
node ports, an external name) gives it back. ``allocate`` runs last, when nothing else can refuse
the write.
"""

from __future__ import annotations

from zonewise.api import ObjectMeta, Service
from zonewise.api.field_cursor import IMMUTABLE, Field
from zonewise.api.objects.core import ServicePort, ServiceSpec
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.metadata import validate_labels
from zonewise.embedded.apiserver.strategy.network.allocation import (
    PORT_TAKEN,
    AddressHolder,
    Allocation,
    Exhausted,
)
from zonewise.embedded.apiserver.strategy.network.service_validation import (
    EXTERNAL_TYPES,
    family_of,
    is_headless_without_selector,
    is_local_load_balancer,
    validate_cluster_ips,
    validate_families,
    validate_policies,
    validate_ports,
    validate_type,
)
from zonewise.embedded.apiserver.strategy.warnings import service_warnings
from zonewise.traffic.modes import GATE_OFF, hint_request_of
from zonewise.traffic.validation import validate_service_traffic

SET_ONCE = "may not change once set"


class ServiceRules(Rules):
    """The rules of Services."""

    answers_deleted = True
    creates_on_update = True
    selectable = frozenset({"spec.clusterIP", "spec.type"})

    allocates = True

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation

    def name_errors(self, name: str) -> list[str]:
        """A Service is part of DNS names."""
        return names.label_errors(name)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Complete families and addresses."""
        obj["status"] = {"loadBalancer": {}}
        spec = obj.setdefault("spec", {})
        _drop_gated(spec, None, context)
        _sync_cluster_ips(spec, None)
        self._default_families(spec)

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Keep what was allocated where the new object leaves it out."""
        spec, old_spec = obj.setdefault("spec", {}), old["spec"]
        _drop_gated(spec, old_spec, context)
        _keep_allocated(spec, old_spec)
        _sync_cluster_ips(spec, old_spec)
        _drop_meaningless(spec, old_spec)
        self._default_families(spec)

    def validate(self, obj: Field, context: StrategyContext) -> None:
        self._validate_spec(obj["spec"])
        obj.errors.extend(validate_service_traffic(_as_service(obj.value)))

    def _validate_spec(self, spec: Field) -> None:
        validate_ports(spec)
        validate_cluster_ips(spec)
        validate_families(spec, self._allocation.families)
        validate_type(spec)
        validate_policies(spec)
        if spec.value.get("selector"):
            validate_labels(spec["selector"])
        spec["trafficPolicy"].enum(("Cluster", "Local", "PreferZone"))

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        spec, old_spec = obj["spec"], old["spec"]
        if "ExternalName" not in {spec.value.get("type"), old_spec.get("type")}:
            addresses = spec["clusterIPs"]
            pairs = zip(addresses.value or (), old_spec.get("clusterIPs") or (), strict=False)
            for index, (address, old_address) in enumerate(pairs):
                if address != old_address and index < 2:
                    addresses.item(index).invalid(SET_ONCE, addresses.value)
        if is_local_load_balancer(spec.value) and is_local_load_balancer(old_spec):
            check_port = spec["healthCheckNodePort"]
            if check_port.value != old_spec.get("healthCheckNodePort"):
                check_port.forbid(IMMUTABLE)
        if spec.value.get("type") == old_spec.get("type") == "LoadBalancer":
            load_balancer_class = spec["loadBalancerClass"]
            if load_balancer_class.value != old_spec.get("loadBalancerClass"):
                load_balancer_class.invalid(SET_ONCE)
        self._validate_spec(spec)
        obj.errors.extend(validate_service_traffic(_as_service(obj.value), _as_service(old)))

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """Only a load balancer has been given addresses by one."""
        ingress = obj["status"]["loadBalancer"]["ingress"]
        old_balancer = (old.get("status") or {}).get("loadBalancer") or {}
        if obj["spec"]["type"].value != "LoadBalancer" and (
            ingress.value != old_balancer.get("ingress")
        ):
            ingress.forbid_filled('may only be used when `spec.type` is "LoadBalancer"')

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Addresses that are old, oddly written or without effect; a mode whose gate is off."""
        context.warnings.extend(service_warnings(obj))
        reason = hint_request_of(_as_service(obj), context.gates).reason
        if reason is not None and reason.code == GATE_OFF:
            context.warnings.append(reason.message)

    def allocate(self, obj: Field, old: Obj | None, context: StrategyContext) -> None:
        """Take addresses and node ports, the requested ones or any."""
        meta, spec, errors = obj.value["metadata"], obj["spec"], obj.errors
        holder = (meta["namespace"], meta["name"])
        try:
            self._take_addresses(spec, holder)
            self._take_ports(spec, holder)
        except Exhausted as error:
            errors.clear()
            spec.forbid(str(error))
        if not errors and not context.dry_run:
            self._allocation.hold(holder, spec.value)

    def settled(self, namespace: str, name: str, obj: Obj | None) -> None:
        """What a Service holds is what is stored."""
        self._allocation.hold((namespace, name), obj["spec"] if obj else None)

    def _default_families(self, spec: Obj) -> None:
        if spec.get("type") == "ExternalName":
            return
        configured = self._allocation.families
        families = list(spec.get("ipFamilies") or ())
        for address in spec.get("clusterIPs") or ():
            family = family_of(address)
            if family and family not in families:
                families.append(family)
        without_selector = is_headless_without_selector(spec)
        policy = spec.get("ipFamilyPolicy")
        if not policy:
            dual = len(families) > 1 or (without_selector and not spec.get("ipFamilies"))
            policy = spec["ipFamilyPolicy"] = "RequireDualStack" if dual else "SingleStack"
        if not families:
            families.append(configured[0])
        if policy != "SingleStack" and len(families) == 1:
            other = "IPv6" if families[0] == "IPv4" else "IPv4"
            if other in configured or without_selector:
                families.append(other)
        spec["ipFamilies"] = families

    def _take_addresses(self, spec: Field, holder: AddressHolder) -> None:
        fields = spec.value
        requested = fields.get("clusterIPs") or []
        if fields.get("type") == "ExternalName" or requested[:1] == ["None"]:
            return
        chosen: list[str] = []
        for index, family in enumerate(fields["ipFamilies"]):
            if index >= len(requested):
                chosen.append(self._allocation.choose_address(family))
                continue
            address = requested[index]
            reason = self._allocation.address_error(address, family, holder)
            if reason:
                spec.child("clusterIPs", requested).invalid(
                    f"failed to allocate IP {address}: {reason}"
                )
                return
            chosen.append(address)
        fields["clusterIP"], fields["clusterIPs"] = chosen[0], chosen

    def _take_ports(self, spec: Field, holder: AddressHolder) -> None:
        fields = spec.value
        if _needs_node_ports(fields):
            protocols: dict[int, set[str]] = {}
            for port in spec["ports"].each():
                number, protocol = port["nodePort"], port.value.get("protocol", "TCP")
                if not number.value:
                    continue
                reason = self._allocation.port_error(number.value, protocol, holder)
                if not reason and protocol in protocols.get(number.value, ()):
                    reason = PORT_TAKEN
                number.invalid_if(reason)
                protocols.setdefault(number.value, set()).add(protocol)
            for values in fields.get("ports") or ():
                if not values.get("nodePort"):
                    values["nodePort"] = self._allocation.choose_port(set(protocols))
                    protocols.setdefault(values["nodePort"], set())
        if is_local_load_balancer(fields):
            number = spec["healthCheckNodePort"]
            if not number.value:
                fields["healthCheckNodePort"] = self._allocation.choose_port(
                    {port.get("nodePort", 0) for port in fields.get("ports") or ()}
                )
            else:
                number.invalid_if(self._allocation.port_error(number.value, "TCP", holder))


def _sync_cluster_ips(spec: Obj, old: Obj | None) -> None:
    """``clusterIP`` is the first of ``clusterIPs``; a client may set either."""
    first, addresses = spec.get("clusterIP"), spec.get("clusterIPs")
    if old is not None and old.get("clusterIP") != first and addresses == old.get("clusterIPs"):
        addresses = None
    if first and not addresses:
        spec["clusterIPs"] = [first]
    elif not first:
        if addresses and old is None:
            spec["clusterIP"] = addresses[0]
        elif addresses:
            spec.pop("clusterIPs")


def _keep_allocated(spec: Obj, old: Obj) -> None:
    kinds = {"ClusterIP", *EXTERNAL_TYPES}
    if spec.get("type") in kinds and old.get("type") in kinds:
        if not spec.get("clusterIP") and old.get("clusterIP"):
            spec["clusterIP"] = old["clusterIP"]
        if not spec.get("clusterIPs") and spec.get("clusterIP") == old.get("clusterIP"):
            spec["clusterIPs"] = old.get("clusterIPs") or []
        for key in ("ipFamilies", "ipFamilyPolicy"):
            if not spec.get(key) and old.get(key):
                spec[key] = old[key]
    if spec.get("type") in EXTERNAL_TYPES and old.get("type") in EXTERNAL_TYPES:
        numbers = {
            (port.get("port"), port.get("protocol"), port.get("name")): port.get("nodePort")
            for port in old.get("ports") or ()
        }
        used = {port.get("nodePort") for port in spec.get("ports") or ()}
        for port in spec.get("ports") or ():
            number = numbers.get((port.get("port"), port.get("protocol"), port.get("name")))
            if not port.get("nodePort") and number and number not in used:
                port["nodePort"] = number
                used.add(number)
        leftover = [
            port.get("nodePort")
            for port in old.get("ports") or ()
            if port.get("nodePort") and port.get("nodePort") not in used
        ]
        bare = [port for port in spec.get("ports") or () if not port.get("nodePort")]
        if len(bare) == len(leftover) == 1:
            bare[0]["nodePort"] = leftover[0]
    if (
        is_local_load_balancer(spec)
        and is_local_load_balancer(old)
        and not spec.get("healthCheckNodePort")
    ):
        spec["healthCheckNodePort"] = old.get("healthCheckNodePort")


def _drop_meaningless(spec: Obj, old: Obj) -> None:
    """What only the old type needed is removed, unless the client changed it."""
    kind = spec.get("type")
    if kind == old.get("type") and is_local_load_balancer(spec) == is_local_load_balancer(old):
        return
    if kind == "ExternalName" and old.get("type") != "ExternalName":
        _drop_unchanged(spec, old, "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
        _drop_unchanged(spec, old, "internalTrafficPolicy")
    if kind not in EXTERNAL_TYPES and old.get("type") in EXTERNAL_TYPES:
        numbers = {port.get("nodePort") for port in old.get("ports") or ()}
        for port in spec.get("ports") or ():
            if port.get("nodePort") in numbers:
                port.pop("nodePort", None)
        _drop_unchanged(spec, old, "externalTrafficPolicy")
    if not is_local_load_balancer(spec):
        _drop_unchanged(spec, old, "healthCheckNodePort")
    if kind != "LoadBalancer" and old.get("type") == "LoadBalancer":
        _drop_unchanged(spec, old, "allocateLoadBalancerNodePorts", "loadBalancerClass")


def _drop_unchanged(spec: Obj, old: Obj, *keys: str) -> None:
    for key in keys:
        if spec.get(key) == old.get(key):
            spec.pop(key, None)


def _drop_gated(spec: Obj, old: Obj | None, context: StrategyContext) -> None:
    """A field whose gate is off is dropped, unless it was set already."""
    for key, gate in (
        ("topologyKeys", "ServiceTopology"),
        ("trafficPolicy", "ServiceTrafficPolicy"),
    ):
        if key in spec and not context.gates[gate] and not (old and key in old):
            del spec[key]
            context.warnings.append(f"spec.{key} is ignored: its feature gate {gate} is off")


def _needs_node_ports(spec: Obj) -> bool:
    if spec.get("type") == "NodePort":
        return True
    return spec.get("type") == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True)


def _as_service(obj: Obj) -> Service:
    """A Service as far as the rules on hints and topology keys look."""
    spec = obj["spec"]
    return Service(
        metadata=ObjectMeta(annotations=obj["metadata"].get("annotations") or {}),
        spec=ServiceSpec(
            type=spec.get("type", ""),
            ports=tuple(
                ServicePort(protocol=port.get("protocol", ""), node_port=port.get("nodePort") or 0)
                for port in spec.get("ports") or ()
            ),
            external_ips=tuple(spec.get("externalIPs") or ()),
            external_traffic_policy=spec.get("externalTrafficPolicy", ""),
            traffic_policy=spec.get("trafficPolicy"),
            traffic_distribution=spec.get("trafficDistribution"),
            topology_keys=tuple(spec.get("topologyKeys") or ()),
        ),
    )
