"""Services: families, addresses, node ports, and the fields the sources add.

An update that leaves out what was allocated keeps it; one that makes it meaningless (a type without
node ports, an external name) gives it back. ``allocate`` runs last, when nothing else can refuse
the write.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from zonewise.api import ObjectMeta, Service, ServiceSpec, faults
from zonewise.embedded import metadata
from zonewise.embedded.allocation import Allocation, Exhausted
from zonewise.embedded.rules import names
from zonewise.embedded.rules.base import Faults, Obj, Rules, Scene
from zonewise.traffic import service_faults

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
OUTSIDE = ("LoadBalancer", "NodePort")
PROTOCOLS = ("SCTP", "TCP", "UDP")
DISTRIBUTIONS = ("PreferClose", "PreferSameNode", "PreferSameZone")
LONGEST_AFFINITY = 86_400
TRAFFIC_POLICIES = ("Cluster", "Local", "PreferZone")
TOPOLOGY_KEYS_LIMIT = 16


class ServiceRules(Rules):
    """The rules of Services."""

    answers_deleted = True
    creates_on_update = True
    selectable = frozenset({"spec.clusterIP", "spec.type"})

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none."""
        return names.label(name)

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        spec = obj["spec"]
        return {"spec.clusterIP": spec.get("clusterIP", ""), "spec.type": spec.get("type", "")}

    def prepare_create(self, obj: Obj, scene: Scene) -> None:
        """Complete families and addresses."""
        obj["status"] = {"loadBalancer": {}}
        spec = obj.setdefault("spec", {})
        _drop_gated(spec, None, scene)
        _one_and_many(spec, None)
        self._families(spec)

    def prepare_update(self, obj: Obj, old: Obj, scene: Scene) -> None:
        """Keep what was allocated where the new object does not speak of it."""
        spec, before = obj.setdefault("spec", {}), old["spec"]
        _drop_gated(spec, before, scene)
        _keep_allocated(spec, before)
        _one_and_many(spec, before)
        _drop_meaningless(spec, before)
        self._families(spec)

    def validate(self, obj: Obj, scene: Scene) -> Faults:
        """What is wrong with a Service."""
        return self._faults(obj) + service_faults(_hinting(obj))

    def _faults(self, obj: Obj) -> Faults:
        spec = obj["spec"]
        found = _port_list(spec)
        found += _address_faults(spec)
        found += self._family_faults(spec)
        found += _type_faults(spec)
        found += _policy_faults(spec)
        if spec.get("selector"):
            found += metadata.label_faults("spec.selector", spec["selector"])
        return found + _source_faults(obj)

    def validate_status(self, obj: Obj, old: Obj, scene: Scene) -> Faults:
        """Only a load balancer has been given addresses by one."""
        balancer = (obj.get("status") or {}).get("loadBalancer") or {}
        before = (old.get("status") or {}).get("loadBalancer") or {}
        ingress = balancer.get("ingress")
        if not ingress or obj["spec"].get("type") == "LoadBalancer":
            return []
        if ingress == before.get("ingress"):
            return []
        text = 'may only be used when `spec.type` is "LoadBalancer"'
        return [faults.forbidden("status.loadBalancer.ingress", text)]

    def validate_update(self, obj: Obj, old: Obj, scene: Scene) -> Faults:
        """What an update may not change."""
        spec, before = obj["spec"], old["spec"]
        found: Faults = []
        if spec.get("type") != "ExternalName" and before.get("type") != "ExternalName":
            was, now = before.get("clusterIPs") or [], spec.get("clusterIPs") or []
            if was and now and was[0] != now[0]:
                found.append(faults.invalid("spec.clusterIPs[0]", now, "may not change once set"))
            if len(was) > 1 and len(now) > 1 and was[1] != now[1]:
                found.append(faults.invalid("spec.clusterIPs[1]", now, "may not change once set"))
        if _local_balancer(spec) and _local_balancer(before):
            check = "healthCheckNodePort"
            if spec.get(check) != before.get(check):
                found.append(faults.forbidden(f"spec.{check}", "field is immutable"))
        if spec.get("type") == before.get("type") == "LoadBalancer":
            was, now = before.get("loadBalancerClass"), spec.get("loadBalancerClass")
            if was != now:
                found.append(
                    faults.invalid("spec.loadBalancerClass", now, "may not change once set")
                )
        return found + self._faults(obj) + service_faults(_hinting(obj), _hinting(old))

    def allocate(self, obj: Obj, old: Obj | None, scene: Scene) -> Faults:
        """Take addresses and node ports, the ones asked for or any."""
        spec = obj["spec"]
        meta = obj["metadata"]
        holder = (meta["namespace"], meta["name"])
        try:
            found = self._take_addresses(spec, holder) + self._take_ports(spec, holder)
        except Exhausted as error:
            return [faults.forbidden("spec", str(error))]
        if not found and not scene.dry_run:
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
            family = _family(address)
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
        known = True
        for index, family in enumerate(families):
            path = f"spec.ipFamilies[{index}]"
            if family not in {"IPv4", "IPv6"}:
                known = False
                found.append(faults.unsupported(path, family, ("IPv4", "IPv6")))
            elif families.index(family) != index:
                found.append(faults.duplicate(path, family))
            elif family not in have and not open_headless:
                known = False
                found.append(faults.invalid(path, family, "not configured on this cluster"))
        if policy not in {"SingleStack", "PreferDualStack", "RequireDualStack"}:
            supported = ("PreferDualStack", "RequireDualStack", "SingleStack")
            found.append(faults.unsupported("spec.ipFamilyPolicy", policy, supported))
        elif policy == "RequireDualStack" and len(have) < 2 and known and not open_headless:
            text = "this cluster is not configured for dual-stack services"
            found.append(faults.invalid("spec.ipFamilyPolicy", policy, text))
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
                    return [faults.invalid("spec.clusterIPs", addresses, text)]
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
                        found.append(faults.invalid(f"spec.ports[{index}].nodePort", number, why))
                    mine.setdefault(number, set()).add(protocol)
            for port in spec.get("ports") or ():
                if not port.get("nodePort"):
                    port["nodePort"] = self._allocation.port(set(mine))
                    mine.setdefault(port["nodePort"], set()).add(port.get("protocol", "TCP"))
        if _local_balancer(spec):
            number = spec.get("healthCheckNodePort")
            if not number:
                spec["healthCheckNodePort"] = self._allocation.port(
                    {port.get("nodePort", 0) for port in spec.get("ports") or ()}
                )
            elif why := self._allocation.port_fault(number, "TCP", holder):
                found.append(faults.invalid("spec.healthCheckNodePort", number, why))
        return found


def _one_and_many(spec: Obj, before: Obj | None) -> None:
    """``clusterIP`` is the first of ``clusterIPs``; a client may speak of either."""
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
    if _local_balancer(spec) and _local_balancer(before) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before.get("healthCheckNodePort")


def _drop_meaningless(spec: Obj, before: Obj) -> None:
    """What the old type needed and the new one does not goes, unless the client changed it."""
    kind = spec.get("type")
    if kind == before.get("type") and _local_balancer(spec) == _local_balancer(before):
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
    if not _local_balancer(spec) and spec.get("healthCheckNodePort") == before.get(
        "healthCheckNodePort"
    ):
        spec.pop("healthCheckNodePort", None)
    if kind != "LoadBalancer" and before.get("type") == "LoadBalancer":
        for key in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
            if spec.get(key) == before.get(key):
                spec.pop(key, None)


def _drop_gated(spec: Obj, before: Obj | None, scene: Scene) -> None:
    """A field whose gate is off is not there, unless it was there already."""
    for key, gate in (
        ("topologyKeys", "ServiceTopology"),
        ("trafficPolicy", "ServiceTrafficPolicy"),
    ):
        if key in spec and not scene.gates[gate] and not (before and key in before):
            del spec[key]
            scene.warnings.append(f"spec.{key} is ignored: its feature gate {gate} is off")


def _wants_node_ports(spec: Obj) -> bool:
    if spec.get("type") == "NodePort":
        return True
    return spec.get("type") == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True)


def _local_balancer(spec: Obj) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _family(address: str) -> str:
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""


def _port_list(spec: Obj) -> Faults:
    ports = spec.get("ports") or ()
    headless = spec.get("clusterIP") == "None"
    found: Faults = []
    if not ports and not headless and spec.get("type") != "ExternalName":
        return [faults.required("spec.ports")]
    if spec.get("type") == "LoadBalancer":
        for index, port in enumerate(ports):
            if port.get("port") == 10250:
                text = "may not expose port 10250 externally since it is used by kubelet"
                found.append(faults.invalid(f"spec.ports[{index}]", 10250, text))
    seen_names: set[str] = set()
    seen_ports: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        name = port.get("name", "")
        if not name and len(ports) > 1:
            found.append(faults.required(f"{path}.name"))
        elif name:
            found += [faults.invalid(f"{path}.name", name, text) for text in names.label(name)]
            if name in seen_names:
                found.append(faults.duplicate(f"{path}.name", name))
            seen_names.add(name)
        number = port.get("port", 0)
        if not 1 <= number <= 65535:
            text = "must be between 1 and 65535, inclusive"
            found.append(faults.invalid(f"{path}.port", number, text))
        protocol = port.get("protocol", "")
        if not protocol:
            found.append(faults.required(f"{path}.protocol"))
        elif protocol not in PROTOCOLS:
            found.append(faults.unsupported(f"{path}.protocol", protocol, PROTOCOLS))
        target = port.get("targetPort")
        if isinstance(target, int) and not 1 <= target <= 65535:
            text = "must be between 1 and 65535, inclusive"
            found.append(faults.invalid(f"{path}.targetPort", target, text))
        elif isinstance(target, str):
            found += [
                faults.invalid(f"{path}.targetPort", target, text)
                for text in names.port_name(target)
            ]
        application = port.get("appProtocol")
        if application:
            found += [
                faults.invalid(f"{path}.appProtocol", application, text)
                for text in metadata.qualified_name(application)
            ]
        if port.get("nodePort") and spec.get("type") not in OUTSIDE:
            text = "may not be used when `type` is 'ClusterIP'"
            found.append(faults.forbidden(f"{path}.nodePort", text))
    for index, port in enumerate(ports):
        key = (port.get("port"), port.get("protocol"))
        if key in seen_ports:
            shown = {"port": key[0], "protocol": key[1]}
            found.append(faults.duplicate(f"spec.ports[{index}]", shown))
        seen_ports.add(key)
    return found


def _address_faults(spec: Obj) -> Faults:
    many = spec.get("clusterIPs") or []
    one = spec.get("clusterIP", "")
    if spec.get("type") == "ExternalName":
        if one or many:
            text = "may not be set when `type` is 'ExternalName'"
            return [faults.forbidden("spec.clusterIPs", text)]
        return []
    if not many:
        return []
    if one != many[0]:
        return [faults.invalid("spec.clusterIPs", many, "first value must match `clusterIP`")]
    found: Faults = []
    if len(many) > 2:
        found.append(faults.invalid("spec.clusterIPs", many, "may only hold up to 2 values"))
    for index, address in enumerate(many):
        path = f"spec.clusterIPs[{index}]"
        if address == "None":
            if index or len(many) > 1:
                text = "'None' must be the first and only value"
                found.append(faults.invalid(path, address, text))
            elif spec.get("type") in OUTSIDE:
                text = f"may not be set to 'None' for {spec['type']} services"
                found.append(faults.invalid(path, address, text))
        elif not _family(address):
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            found.append(faults.invalid(path, address, text))
    return found


def _type_faults(spec: Obj) -> Faults:
    found: Faults = []
    kind = spec.get("type", "")
    if not kind:
        found.append(faults.required("spec.type"))
    elif kind not in TYPES:
        found.append(faults.unsupported("spec.type", kind, TYPES))
    if kind == "ExternalName":
        external = spec.get("externalName", "").removesuffix(".")
        if not external:
            found.append(faults.required("spec.externalName"))
        else:
            found += [
                faults.invalid("spec.externalName", external, text)
                for text in names.subdomain(external)
            ]
    for index, address in enumerate(spec.get("externalIPs") or ()):
        path = f"spec.externalIPs[{index}]"
        if not _family(address):
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            found.append(faults.invalid(path, address, text))
        else:
            found += _special_address(path, address)
    if kind != "LoadBalancer":
        only = "may only be used when `type` is 'LoadBalancer'"
        if spec.get("loadBalancerSourceRanges"):
            found.append(faults.forbidden("spec.LoadBalancerSourceRanges", only))
        for key in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
            if spec.get(key) is not None:
                found.append(faults.forbidden(f"spec.{key}", only))
    elif spec.get("loadBalancerClass"):
        found += [
            faults.invalid("spec.loadBalancerClass", spec["loadBalancerClass"], text)
            for text in metadata.qualified_name(spec["loadBalancerClass"])
        ]
    for index, block in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        try:
            ipaddress.ip_network(block.strip(), strict=False)
        except ValueError:
            text = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            found.append(faults.invalid(f"spec.LoadBalancerSourceRanges[{index}]", block, text))
    return found


def _special_address(path: str, text: str) -> Faults:
    address = ipaddress.ip_address(text)
    for special, why in (
        (address.is_unspecified, "may not be unspecified (0.0.0.0 or ::)"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (
            address.is_multicast and str(address).startswith(("224.0.0.", "ff02")),
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ):
        if special:
            return [faults.invalid(path, text, why)]
    return []


def _policy_faults(spec: Obj) -> Faults:
    found: Faults = []
    affinity = spec.get("sessionAffinity", "")
    if not affinity:
        found.append(faults.required("spec.sessionAffinity"))
    elif affinity not in {"ClientIP", "None"}:
        found.append(faults.unsupported("spec.sessionAffinity", affinity, ("ClientIP", "None")))
    elif affinity == "ClientIP":
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        client = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
        seconds = client.get("timeoutSeconds", 10_800)
        if not 0 < seconds <= LONGEST_AFFINITY:
            text = f"must be greater than 0 and less than {LONGEST_AFFINITY}"
            found.append(faults.invalid(path, seconds, text))
    internal = spec.get("internalTrafficPolicy")
    if internal is not None and internal not in {"Cluster", "Local"}:
        found.append(
            faults.unsupported("spec.internalTrafficPolicy", internal, ("Cluster", "Local"))
        )
    external = spec.get("externalTrafficPolicy")
    if external:
        if spec.get("type") not in OUTSIDE and not spec.get("externalIPs"):
            text = (
                "may only be set for externally-accessible services: NodePort, LoadBalancer, or"
                " one with externalIPs"
            )
            found.append(faults.invalid("spec.externalTrafficPolicy", external, text))
        elif external not in {"Cluster", "Local"}:
            found.append(
                faults.unsupported("spec.externalTrafficPolicy", external, ("Cluster", "Local"))
            )
    elif spec.get("type") in OUTSIDE:
        found.append(faults.required("spec.externalTrafficPolicy"))
    check = spec.get("healthCheckNodePort", 0)
    if check and not _local_balancer(spec):
        text = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        found.append(faults.invalid("spec.healthCheckNodePort", check, text))
    distribution = spec.get("trafficDistribution")
    if distribution is not None and distribution not in DISTRIBUTIONS:
        found.append(faults.unsupported("spec.trafficDistribution", distribution, DISTRIBUTIONS))
    return found


def _hinting(obj: Obj) -> Service:
    """A Service as far as the rules on hints look."""
    spec = obj["spec"]
    return Service(
        metadata=ObjectMeta(annotations=obj["metadata"].get("annotations") or {}),
        spec=ServiceSpec(
            traffic_policy=spec.get("trafficPolicy"),
            topology_keys=tuple(spec.get("topologyKeys") or ()),
        ),
    )


def _source_faults(obj: Obj) -> Faults:
    """The fields of the sources: topologyKeys and trafficPolicy."""
    spec = obj["spec"]
    found: Faults = []
    policy = spec.get("trafficPolicy")
    if policy is not None and policy not in TRAFFIC_POLICIES:
        found.append(faults.unsupported("spec.trafficPolicy", policy, TRAFFIC_POLICIES))
    keys = spec.get("topologyKeys") or ()
    if keys and spec.get("externalTrafficPolicy") == "Local":
        text = "may not be used with externalTrafficPolicy Local"
        found.append(faults.forbidden("spec.topologyKeys", text))
    if len(keys) > TOPOLOGY_KEYS_LIMIT:
        found.append(faults.too_many("spec.topologyKeys", len(keys), TOPOLOGY_KEYS_LIMIT))
    for index, key in enumerate(keys):
        path = f"spec.topologyKeys[{index}]"
        if key == "*":
            if index != len(keys) - 1:
                found.append(faults.invalid(path, key, "'*' must be the last key"))
        else:
            found += [faults.invalid(path, key, text) for text in metadata.qualified_name(key)]
        if list(keys).index(key) != index:
            found.append(faults.duplicate(path, key))
    return found
