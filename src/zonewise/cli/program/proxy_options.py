"""The flags of a proxy that serves, under the names that kube-proxy gave them.

A flag that was given wins over the file of ``--config``, and both over the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from zonewise.proxy.settings import ProxySettings
    from zonewise.traffic.routes.service import RouteSettings

CommandFunction = Callable[..., Any]

MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")


@dataclass(frozen=True, slots=True)
class Serving:
    """What the flags say, as they were given; None is not given."""

    config: str | None
    cluster_cidr: str | None
    detect_local_mode: str | None
    pod_bridge_interface: str | None
    pod_interface_name_prefix: str | None
    masquerade_all: bool | None
    masquerade_bit: int | None
    nodeport_addresses: str | None
    healthz_bind_address: str | None
    metrics_bind_address: str | None

    def kubeconfig(self) -> str | None:
        """The kubeconfig that the file of ``--config`` names, None if it names none."""
        from zonewise.proxy.configuration import read_configuration

        given = read_configuration(self.config) if self.config else None
        return (given.client_connection.kubeconfig or None) if given else None

    def settings(self, node_name: str | None, routing: RouteSettings) -> ProxySettings:
        """All of it as the proxy takes it."""
        from zonewise.proxy.configuration import Configuration, read_configuration

        given = read_configuration(self.config) if self.config else Configuration()
        return given.with_flags(
            hostname_override=node_name,
            cluster_cidr=self.cluster_cidr,
            detect_local_mode=self.detect_local_mode,
            bridge_interface=self.pod_bridge_interface,
            interface_name_prefix=self.pod_interface_name_prefix,
            masquerade_all=self.masquerade_all,
            masquerade_bit=self.masquerade_bit,
            node_port_addresses=_words(self.nodeport_addresses),
            healthz_bind_address=self.healthz_bind_address,
            metrics_bind_address=self.metrics_bind_address,
        ).settings(routing)


def serving_options(function: CommandFunction) -> CommandFunction:
    """All flags of a proxy that serves, as ``serving``."""

    @wraps(function)
    def serving(*args: Any, **others: Any) -> Any:
        names = Serving.__dataclass_fields__
        given = Serving(**{name: others.pop(name) for name in names})
        return function(*args, serving=given, **others)

    made: CommandFunction = serving
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


_OPTIONS = (
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="A KubeProxyConfiguration, as kube-proxy reads it; flags override it.",
    ),
    click.option(
        "--cluster-cidr",
        metavar="A,B",
        help="The networks of pods, one of each family: what comes from elsewhere to a ClusterIP is"
        " masqueraded.",
    ),
    click.option(
        "--detect-local-mode",
        type=click.Choice(MODES),
        help="How packets from pods of this node are recognized.  [default: ClusterCIDR]",
    ),
    click.option(
        "--pod-bridge-interface", metavar="NAME", help="With BridgeInterface: the bridge of pods."
    ),
    click.option(
        "--pod-interface-name-prefix",
        metavar="TEXT",
        help="With InterfaceNamePrefix: how the names of pods' interfaces begin.",
    ),
    click.option(
        "--masquerade-all/--no-masquerade-all",
        default=None,
        help="Masquerade everything that goes to a ClusterIP.",
    ),
    click.option(
        "--masquerade-bit",
        type=click.IntRange(0, 31),
        help="The bit of the packet mark that asks for masquerade.  [default: 14]",
    ),
    click.option(
        "--nodeport-addresses",
        metavar="A,B",
        help="Networks whose addresses on this node take NodePorts and health checks of load"
        " balancers, or 'primary': those of its Node object.  [default: primary]",
    ),
    click.option(
        "--healthz-bind-address",
        metavar="ADDRESS:PORT",
        help="Where to serve /healthz and /livez; '' is nowhere.  [default: 0.0.0.0:10256]",
    ),
    click.option(
        "--metrics-bind-address",
        metavar="ADDRESS:PORT",
        help="Where to serve /metrics, /routes and /proxyMode; '' is nowhere."
        "  [default: 127.0.0.1:10249]",
    ),
)


def _words(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(word.strip() for word in text.split(",") if word.strip())
