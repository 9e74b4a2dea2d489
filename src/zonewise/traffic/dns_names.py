"""What a name in the cluster's domain means, as Kubernetes' DNS specification spells names.

Labels are read from the right, the cluster's domain already taken off:

* nothing, ``svc``, ``pod``: the domain itself, which exists and has no records of its own;
* ``NAMESPACE.svc`` and ``NAMESPACE.pod``: a namespace;
* ``SERVICE.NAMESPACE.svc``: a Service;
* ``ENDPOINT.SERVICE.NAMESPACE.svc``: one endpoint, by its hostname or its address with dashes;
* ``_PORT._PROTOCOL.SERVICE.NAMESPACE.svc``: a port; a bare underscore is any;
* ``ZONE.pin._zone.SERVICE.NAMESPACE.svc`` and ``ZONE.prefer._zone…``: the endpoints of a zone, and
  with ``prefer`` all if it has none; a zone may have dots, so it is all remaining labels;
* ``ADDRESS.NAMESPACE.pod``: a pod, by its address with dashes.

Everything else is not a name. Names are compared in lower case; callers convert them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

POD, SVC = "pod", "svc"
ZONE = "_zone"
PIN, PREFER = "pin", "prefer"


@dataclass(frozen=True, slots=True)
class NameQuestion:
    """The parts of a name; "" is a part that was not named."""

    kind: str = ""
    namespace: str = ""
    service: str = ""
    endpoint: str = ""
    port: str = ""
    protocol: str = ""
    zone: str = ""
    prefer: bool = False

    @property
    def names_all_endpoints(self) -> bool:
        """Whether all endpoints of a Service, or of one of its ports, are queried."""
        return bool(self.kind == SVC and self.service and not self.endpoint and not self.zone)


def parse_name(labels: Sequence[str]) -> NameQuestion | None:
    """What the labels left of the cluster's domain mean; None if they are not a name."""
    if not labels or (len(labels) == 1 and labels[0] in (SVC, POD)):
        return NameQuestion()
    *remaining, kind = labels
    if kind not in (SVC, POD):
        return None
    namespace = remaining.pop()
    if not remaining:
        return NameQuestion(kind, namespace)
    service = remaining.pop()
    match remaining:
        case []:
            return NameQuestion(kind, namespace, service)
        case [endpoint]:
            return NameQuestion(kind, namespace, service, endpoint)
        case [port, protocol]:
            port, protocol = port.removeprefix("_"), protocol.removeprefix("_")
            return NameQuestion(kind, namespace, service, port=port, protocol=protocol)
        case [*zone, directive, anchor] if (
            anchor == ZONE and directive in (PIN, PREFER) and kind == SVC
        ):
            return NameQuestion(
                kind, namespace, service, zone=".".join(zone), prefer=directive == PREFER
            )
    return None


def address_to_label(address: str) -> str:
    """An address as a label: dashes for dots and colons, and no dash at the end."""
    label = address.replace(".", "-").replace(":", "-")
    return f"{label}0" if label.endswith("-") else label


def label_to_address(label: str) -> str:
    """The address a pod's label stands for; the text may not be an address."""
    if label.count("-") == 3 and "--" not in label:
        return label.replace("-", ".")
    return label.replace("-", ":")
