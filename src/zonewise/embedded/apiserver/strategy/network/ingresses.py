"""Ingresses, their classes, NetworkPolicies and IPAddresses."""

from __future__ import annotations

import ipaddress

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.addresses import (
    NOT_AN_ADDRESS,
    parse_address,
    validate_network,
)
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.selectors import validate_label_selector

PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
PROTOCOLS = ("SCTP", "TCP", "UDP")
POLICY_TYPES = ("Egress", "Ingress")
CONTROLLER_LIMIT = 250
CLASS_ANNOTATION = "kubernetes.io/ingress.class"
NOT_IN_PATHS = ("//", "/./", "/../", "%2f", "%2F")
NOT_AT_THE_END = ("/..", "/.")
NOT_A_NAME = "must be a DNS name, not an IP address"


class IPAddressRules(Rules):
    """IPAddresses are called by the address they are."""

    def name_errors(self, name: str) -> list[str]:
        """The name is an address in its canonical form."""
        try:
            canonical = str(ipaddress.ip_address(name))
        except ValueError:
            return [NOT_AN_ADDRESS]
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

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        self.validate(obj, context)
        annotation = obj["metadata"]["annotations"].entry(CLASS_ANNOTATION).value
        class_name = obj["spec"]["ingressClassName"].value
        if annotation is not None and class_name is not None and class_name != annotation:
            obj["annotations"].child(CLASS_ANNOTATION, annotation).invalid(
                "must match `ingressClassName` when both are specified"
            )

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        backend, rules = spec["defaultBackend"], spec["rules"]
        if not rules.value and backend.value is None:
            spec.invalid("either `defaultBackend` or `rules` must be specified", rules.value)
        if backend.value is not None:
            _validate_backend(backend)
        for rule in rules.each():
            _validate_rule(rule)
        for tls in spec["tls"].each():
            for host in tls["hosts"].each():
                _validate_host(host)
            tls["secretName"].optional().dns_subdomain()
        spec["ingressClassName"].dns_subdomain()

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """Where it is reached is an address or a name, each in its own field."""
        for ingress in obj["status"]["loadBalancer"]["ingress"].each():
            address, host = ingress["ip"], ingress["hostname"]
            if address.value and parse_address(address.value) is None:
                address.invalid(NOT_AN_ADDRESS)
            if host.value:
                host.dns_subdomain()
                if parse_address(host.value) is not None:
                    host.invalid(NOT_A_NAME)


class IngressClassRules(Rules):
    """The rules of IngressClasses."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        controller = obj["spec"]["controller"]
        if controller.required().max_length(CONTROLLER_LIMIT):
            domain, slash, _ = controller.value.partition("/")
            if not slash:
                controller.invalid("must be a domain-prefixed path")
            else:
                controller.without_errors(names.subdomain_errors(domain))
        if obj["spec"]["parameters"].value is not None:
            _validate_parameters(obj["spec"]["parameters"])

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The controller does not change."""
        obj["spec"]["controller"].immutable((old.get("spec") or {}).get("controller"))
        self.validate(obj, context)


class NetworkPolicyRules(Rules):
    """The rules of NetworkPolicies."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        validate_label_selector(spec["podSelector"])
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for rule in spec[direction].each():
                for port in rule["ports"].each():
                    _validate_policy_port(port)
                for peer in rule[peers].each():
                    _validate_policy_peer(peer)
        types = spec["policyTypes"]
        if len(types.value or ()) > len(POLICY_TYPES):
            types.invalid("may not specify more than two policyTypes")
        else:
            for policy_type in types.each():
                policy_type.enum(POLICY_TYPES)


def _validate_host(host: Field) -> None:
    host.without_errors(names.subdomain_errors(host.value.removeprefix("*.")))


def _validate_rule(rule: Field) -> None:
    host = rule["host"]
    if host.value:
        if parse_address(host.value) is not None:
            host.invalid(NOT_A_NAME)
        else:
            _validate_host(host)
    if rule.value.get("http") is not None:
        paths = rule["http"]["paths"]
        paths.required()
        for path in paths.each():
            _validate_path(path)


def _validate_path(path: Field) -> None:
    kind, text = path["pathType"], path.get("path", "")
    if kind.present("pathType must be specified").enum(PATH_TYPES):
        if kind.value == "ImplementationSpecific":
            text = text.optional()
        if text and not text.value.startswith("/"):
            text.invalid("must be an absolute path")
        elif kind.value != "ImplementationSpecific":
            for part in NOT_IN_PATHS:
                if part in text.value:
                    text.invalid(f"must not contain '{part}'")
            for part in NOT_AT_THE_END:
                if text.value.endswith(part):
                    text.invalid(f"cannot end with '{part}'")
    _validate_backend(path["backend"])


def _validate_backend(backend: Field) -> None:
    service, resource = backend["service"], backend["resource"]
    if service.value is not None and resource.value is not None:
        backend.invalid("cannot set both resource and service backends", "")
    elif resource.value is not None:
        _validate_reference(resource)
    elif service.value is None:
        backend.invalid("resource or service backend is required", "")
    else:
        service["name"].required().dns_1035_label()
        number, name = service["port"]["number"], service["port"]["name"]
        if number.value and name.value:
            backend.invalid("cannot set both port name & port number", "")
        elif name.value:
            name.port_name()
        elif not number.value:
            backend.missing("port name or number is required")
        else:
            number.port_number()


def _validate_reference(reference: Field) -> None:
    reference["apiGroup"].optional().dns_subdomain()
    reference["kind"].required().path_segment()
    reference["name"].required().path_segment()


def _validate_parameters(parameters: Field) -> None:
    _validate_reference(parameters)
    scope, namespace = parameters["scope"], parameters["namespace"]
    match scope.value:
        case "Namespace":
            namespace.required("`parameters.scope` is set to 'Namespace'").dns_label()
        case "Cluster":
            namespace.forbid_set("`parameters.scope` is set to 'Cluster'")
        case None:
            scope.missing()
        case _:
            scope.unsupported(("Cluster", "Namespace"))


def _validate_policy_port(rule: Field) -> None:
    rule["protocol"].enum(PROTOCOLS)
    port, end = rule["port"], rule["endPort"]
    if port.value is None:
        end.invalid_set("may not be specified when `port` is not specified")
    elif isinstance(port.value, str):
        end.invalid_set("may not be specified when `port` is non-numeric")
        port.port_name()
    else:
        port.port_number()
        end.minimum(port.value, "must be greater than or equal to `port`")
        end.port_number()


def _validate_policy_peer(peer: Field) -> None:
    selectors = (peer["podSelector"], peer["namespaceSelector"])
    for selector in selectors:
        validate_label_selector(selector)
    has_selector = any(selector.value is not None for selector in selectors)
    if peer.value.get("ipBlock") is None:
        if not has_selector:
            peer.missing("must specify a peer")
        return
    if has_selector:
        peer.forbid("may not specify both ipBlock and another peer")
    _validate_ip_block(peer["ipBlock"])


def _validate_ip_block(block: Field) -> None:
    cidr = block["cidr"]
    if not cidr.required():
        return
    outer = validate_network(cidr)
    if outer is None:
        return
    for hole in block["except"].each():
        inner = validate_network(hole)
        if inner is not None and (
            inner.version != outer.version
            or inner.prefixlen <= outer.prefixlen
            or inner.network_address not in outer
        ):
            hole.invalid("must be a strict subset of `cidr`")
