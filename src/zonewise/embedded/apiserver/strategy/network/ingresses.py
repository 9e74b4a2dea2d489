"""Ingresses, their classes, and NetworkPolicies."""

from __future__ import annotations

import ipaddress

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.network import addresses
from zonewise.embedded.apiserver.strategy.selectors import selector_faults

PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
PROTOCOLS = ("SCTP", "TCP", "UDP")
POLICY_TYPES = ("Egress", "Ingress")
LONGEST_CONTROLLER = 250
CLASS_ANNOTATION = "kubernetes.io/ingress.class"
NOT_IN_PATHS = ("//", "/./", "/../", "%2f", "%2F")
NOT_AT_THE_END = ("/..", "/.")
PORT = "must be between 1 and 65535, inclusive"


class AddressRules(Rules):
    """IPAddresses are called by the address they are."""

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none."""
        try:
            canonical = str(ipaddress.ip_address(name))
        except ValueError:
            return ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]
        return [] if name == canonical else [f'must be in canonical form ("{canonical}")']


class IngressRules(Rules):
    """The rules of Ingresses."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """It is not published yet."""
        obj["status"] = {"loadBalancer": {}}

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """The class of a new ingress is a field."""
        if old is None and CLASS_ANNOTATION in (obj["metadata"].get("annotations") or {}):
            context.warnings.append(
                f'annotation "{CLASS_ANNOTATION}" is deprecated, please use'
                " 'spec.ingressClassName' instead"
            )

    def validate_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new ingress."""
        found = self.validate(obj, context)
        legacy = (obj["metadata"].get("annotations") or {}).get(CLASS_ANNOTATION)
        if legacy is not None and (obj.get("spec") or {}).get("ingressClassName") not in {
            None,
            legacy,
        }:
            text = "must match `ingressClassName` when both are specified"
            found.append(field_errors.invalid(f"annotations.{CLASS_ANNOTATION}", legacy, text))
        return found

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with an ingress."""
        spec = obj.get("spec") or {}
        found: Faults = []
        if not spec.get("rules") and spec.get("defaultBackend") is None:
            text = "either `defaultBackend` or `rules` must be specified"
            found.append(field_errors.invalid("spec", spec.get("rules"), text))
        if spec.get("defaultBackend") is not None:
            found += _backend_faults(spec["defaultBackend"], "spec.defaultBackend")
        for index, rule in enumerate(spec.get("rules") or ()):
            found += _rule_faults(rule, f"spec.rules[{index}]")
        for index, tls in enumerate(spec.get("tls") or ()):
            for number, host in enumerate(tls.get("hosts") or ()):
                found += _host_faults(host, f"spec.tls[{index}].hosts[{number}]")
            secret = tls.get("secretName", "")
            if secret:
                path = f"spec.tls[{index}].secretName"
                found += [
                    field_errors.invalid(path, secret, text) for text in names.subdomain(secret)
                ]
        name = spec.get("ingressClassName")
        if name is not None:
            path = "spec.ingressClassName"
            found += [field_errors.invalid(path, name, text) for text in names.subdomain(name)]
        return found

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """Where it is reached is an address or a name, not one in the place of the other."""
        found: Faults = []
        balancer = (obj.get("status") or {}).get("loadBalancer") or {}
        for index, place in enumerate(balancer.get("ingress") or ()):
            path = f"status.loadBalancer.ingress[{index}]"
            address, host = place.get("ip", ""), place.get("hostname", "")
            if address and addresses.parse(address) is None:
                found.append(field_errors.invalid(f"{path}.ip", address, addresses.NOT_AN_ADDRESS))
            if host:
                texts = names.subdomain(host)
                if addresses.parse(host) is not None:
                    texts.append("must be a DNS name, not an IP address")
                found += [field_errors.invalid(f"{path}.hostname", host, text) for text in texts]
        return found


class IngressClassRules(Rules):
    """The rules of IngressClasses."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a class."""
        spec = obj.get("spec") or {}
        controller = spec.get("controller", "")
        path = "spec.controller"
        found: Faults = []
        if not controller:
            found.append(field_errors.required(path))
        elif len(controller) > LONGEST_CONTROLLER:
            found.append(field_errors.too_long(path, LONGEST_CONTROLLER))
        else:
            domain, slash, _ = controller.partition("/")
            texts = names.subdomain(domain) if slash else ["must be a domain-prefixed path"]
            found += [field_errors.invalid(path, controller, text) for text in texts]
        if spec.get("parameters") is not None:
            found += _parameter_faults(spec["parameters"], "spec.parameters")
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The controller does not change."""
        found: Faults = []
        now = (obj.get("spec") or {}).get("controller")
        if now != (old.get("spec") or {}).get("controller"):
            found.append(field_errors.invalid("spec.controller", now, "field is immutable"))
        return found + self.validate(obj, context)


class NetworkPolicyRules(Rules):
    """The rules of NetworkPolicies."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a policy."""
        spec = obj.get("spec") or {}
        found = selector_faults(spec.get("podSelector"), "spec.podSelector")
        for way, side in (("ingress", "from"), ("egress", "to")):
            for index, rule in enumerate(spec.get(way) or ()):
                path = f"spec.{way}[{index}]"
                for number, port in enumerate(rule.get("ports") or ()):
                    found += _port_faults(port, f"{path}.ports[{number}]")
                for number, peer in enumerate(rule.get(side) or ()):
                    found += _peer_faults(peer, f"{path}.{side}[{number}]")
        types = spec.get("policyTypes") or ()
        if len(types) > len(POLICY_TYPES):
            text = "may not specify more than two policyTypes"
            found.append(field_errors.invalid("spec.policyTypes", list(types), text))
        else:
            found += [
                field_errors.unsupported(f"spec.policyTypes[{index}]", kind, POLICY_TYPES)
                for index, kind in enumerate(types)
                if kind not in POLICY_TYPES
            ]
        return found


def _host_faults(host: str, path: str) -> Faults:
    name = host.removeprefix("*.") if host.startswith("*.") else host
    texts = names.subdomain(name)
    return [field_errors.invalid(path, host, text) for text in texts]


def _rule_faults(rule: Obj, path: str) -> Faults:
    found: Faults = []
    host = rule.get("host", "")
    if host:
        if addresses.parse(host) is not None:
            text = "must be a DNS name, not an IP address"
            found.append(field_errors.invalid(f"{path}.host", host, text))
        else:
            found += _host_faults(host, f"{path}.host")
    http = rule.get("http")
    if http is None:
        return found
    paths = http.get("paths") or ()
    if not paths:
        found.append(field_errors.required(f"{path}.http.paths"))
    for index, one in enumerate(paths):
        found += _path_faults(one, f"{path}.http.paths[{index}]")
    return found


def _path_faults(one: Obj, path: str) -> Faults:
    kind, text = one.get("pathType"), one.get("path", "")
    found: Faults = []
    if kind is None:
        found.append(field_errors.required(f"{path}.pathType", "pathType must be specified"))
    elif kind not in PATH_TYPES:
        found.append(field_errors.unsupported(f"{path}.pathType", kind, PATH_TYPES))
    elif kind == "ImplementationSpecific":
        if text and not text.startswith("/"):
            found.append(field_errors.invalid(f"{path}.path", text, "must be an absolute path"))
    elif not text.startswith("/"):
        found.append(field_errors.invalid(f"{path}.path", text, "must be an absolute path"))
    else:
        found += [
            field_errors.invalid(f"{path}.path", text, f"must not contain '{part}'")
            for part in NOT_IN_PATHS
            if part in text
        ]
        found += [
            field_errors.invalid(f"{path}.path", text, f"cannot end with '{part}'")
            for part in NOT_AT_THE_END
            if text.endswith(part)
        ]
    return found + _backend_faults(one.get("backend") or {}, f"{path}.backend")


def _backend_faults(backend: Obj, path: str) -> Faults:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        text = "cannot set both resource and service backends"
        return [field_errors.invalid(path, "", text)]
    if resource is not None:
        return _reference_faults(resource, f"{path}.resource")
    if service is None:
        return [field_errors.invalid(path, "", "resource or service backend is required")]
    found: Faults = []
    name, port = service.get("name", ""), service.get("port") or {}
    if not name:
        found.append(field_errors.required(f"{path}.service.name"))
    else:
        at = f"{path}.service.name"
        found += [field_errors.invalid(at, name, text) for text in names.label_1035(name)]
    number, named = port.get("number", 0), port.get("name", "")
    if number and named:
        found.append(field_errors.invalid(path, "", "cannot set both port name & port number"))
    elif named:
        at = f"{path}.service.port.name"
        found += [field_errors.invalid(at, named, text) for text in names.port_name(named)]
    elif not number:
        found.append(field_errors.required(path, "port name or number is required"))
    elif not 1 <= number <= 65535:
        found.append(field_errors.invalid(f"{path}.service.port.number", number, PORT))
    return found


def _reference_faults(reference: Obj, path: str) -> Faults:
    found: Faults = []
    group = reference.get("apiGroup")
    if group:
        at = f"{path}.apiGroup"
        found += [field_errors.invalid(at, group, text) for text in names.subdomain(group)]
    for key in ("kind", "name"):
        value = reference.get(key, "")
        if not value:
            found.append(field_errors.required(f"{path}.{key}"))
        else:
            at = f"{path}.{key}"
            found += [field_errors.invalid(at, value, text) for text in names.path_segment(value)]
    return found


def _parameter_faults(parameters: Obj, path: str) -> Faults:
    found = _reference_faults(parameters, path)
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    if scope == "Namespace":
        if not namespace:
            text = "`parameters.scope` is set to 'Namespace'"
            found.append(field_errors.required(f"{path}.namespace", text))
        else:
            at = f"{path}.namespace"
            found += [field_errors.invalid(at, namespace, text) for text in names.label(namespace)]
    elif scope == "Cluster":
        if namespace is not None:
            text = "`parameters.scope` is set to 'Cluster'"
            found.append(field_errors.forbidden(f"{path}.namespace", text))
    elif scope is None:
        found.append(field_errors.required(f"{path}.scope"))
    else:
        found.append(field_errors.unsupported(f"{path}.scope", scope, ("Cluster", "Namespace")))
    return found


def _port_faults(port: Obj, path: str) -> Faults:
    found: Faults = []
    protocol = port.get("protocol")
    if protocol is not None and protocol not in PROTOCOLS:
        found.append(field_errors.unsupported(f"{path}.protocol", protocol, PROTOCOLS))
    value, end = port.get("port"), port.get("endPort")
    if value is None:
        if end is not None:
            text = "may not be specified when `port` is not specified"
            found.append(field_errors.invalid(f"{path}.endPort", end, text))
        return found
    if isinstance(value, str):
        if end is not None:
            text = "may not be specified when `port` is non-numeric"
            found.append(field_errors.invalid(f"{path}.endPort", end, text))
        at = f"{path}.port"
        return found + [field_errors.invalid(at, value, text) for text in names.port_name(value)]
    if not 1 <= value <= 65535:
        found.append(field_errors.invalid(f"{path}.port", value, PORT))
    if end is not None:
        if end < value:
            text = "must be greater than or equal to `port`"
            found.append(field_errors.invalid(f"{path}.endPort", end, text))
        if not 1 <= end <= 65535:
            found.append(field_errors.invalid(f"{path}.endPort", end, PORT))
    return found


def _peer_faults(peer: Obj, path: str) -> Faults:
    found: Faults = []
    for key in ("podSelector", "namespaceSelector"):
        found += selector_faults(peer.get(key), f"{path}.{key}")
    block = peer.get("ipBlock")
    if block is None:
        if peer.get("podSelector") is None and peer.get("namespaceSelector") is None:
            found.append(field_errors.required(path, "must specify a peer"))
        return found
    if peer.get("podSelector") is not None or peer.get("namespaceSelector") is not None:
        text = "may not specify both ipBlock and another peer"
        found.append(field_errors.forbidden(path, text))
    return found + _block_faults(block, f"{path}.ipBlock")


def _block_faults(block: Obj, path: str) -> Faults:
    text = block.get("cidr", "")
    if not text:
        return [field_errors.required(f"{path}.cidr")]
    outer = _network(text)
    why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
    if outer is None:
        return [field_errors.invalid(f"{path}.cidr", text, why)]
    found: Faults = []
    for index, hole in enumerate(block.get("except") or ()):
        at = f"{path}.except[{index}]"
        inner = _network(hole)
        if inner is None:
            found.append(field_errors.invalid(at, hole, why))
        elif (
            inner.version != outer.version
            or inner.prefixlen <= outer.prefixlen
            or inner.network_address not in outer
        ):
            found.append(field_errors.invalid(at, hole, "must be a strict subset of `cidr`"))
    return found


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None
