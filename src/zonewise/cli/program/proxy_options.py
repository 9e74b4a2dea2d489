"""The flags of a proxy that serves, under the names that kube-proxy gave them.

A flag that was given wins over the file of ``--config``, and both over the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.program.options import add_options

if TYPE_CHECKING:
    from zonewise.proxy.configuration import Configuration
    from zonewise.proxy.settings import ProxySettings
    from zonewise.traffic.routes.service import RouteSettings

CommandFunction = Callable[..., Any]

MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The values of the flags; None if a flag was not given."""

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

    def read_configuration(self) -> Configuration:
        """The file of ``--config``, or the defaults without one."""
        from zonewise.proxy.configuration import Configuration, read_configuration

        return read_configuration(self.config) if self.config else Configuration()

    def make_settings(self, node_name: str | None, routing: RouteSettings) -> ProxySettings:
        """The settings of the proxy, from flags and file."""
        return (
            self.read_configuration()
            .with_flags(
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
            )
            .settings(routing)
        )


def serving_options(function: CommandFunction) -> CommandFunction:
    """All flags of a proxy that serves, as ``serving``."""

    @wraps(function)
    def collect_flags(*args: Any, **others: Any) -> Any:
        names = ServingOptions.__dataclass_fields__
        serving = ServingOptions(**{name: others.pop(name) for name in names})
        return function(*args, serving=serving, **others)

    return add_options(*_OPTIONS)(collect_flags)


_OPTIONS = (
    click.Option(
        ["--config"],
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="A KubeProxyConfiguration, as kube-proxy reads it; flags override it.",
    ),
    click.Option(
        ["--cluster-cidr"],
        metavar="A,B",
        help="The networks of pods, one of each family: packets from elsewhere to a ClusterIP are"
        " masqueraded.",
    ),
    click.Option(
        ["--detect-local-mode"],
        type=click.Choice(MODES),
        help="How packets from pods of this node are recognized.  [default: ClusterCIDR]",
    ),
    click.Option(
        ["--pod-bridge-interface"], metavar="NAME", help="With BridgeInterface: the bridge of pods."
    ),
    click.Option(
        ["--pod-interface-name-prefix"],
        metavar="TEXT",
        help="With InterfaceNamePrefix: how the names of pods' interfaces begin.",
    ),
    click.Option(
        ["--masquerade-all/--no-masquerade-all"],
        default=None,
        help="Masquerade all packets to a ClusterIP.",
    ),
    click.Option(
        ["--masquerade-bit"],
        type=click.IntRange(0, 31),
        help="The bit of the packet mark that requests masquerading.  [default: 14]",
    ),
    click.Option(
        ["--nodeport-addresses"],
        metavar="A,B",
        help="Networks whose addresses on this node take NodePorts and health checks of load"
        " balancers, or 'primary': those of its Node object.  [default: primary]",
    ),
    click.Option(
        ["--healthz-bind-address"],
        metavar="ADDRESS:PORT",
        help="Where to serve /healthz and /livez; '' is nowhere.  [default: 0.0.0.0:10256]",
    ),
    click.Option(
        ["--metrics-bind-address"],
        metavar="ADDRESS:PORT",
        help="Where to serve /metrics, /routes and /proxyMode; '' is nowhere."
        "  [default: 127.0.0.1:10249]",
    ),
)


def _words(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(word.strip() for word in text.split(",") if word.strip())
