"""A KubeProxyConfiguration, read as far as it means anything to this proxy.

The file of a cluster that runs kube-proxy can be used as it is, whatever mode it names: how often
to sync, how IPVS or Windows are to be set up, and everything else that has no counterpart here is
passed over. What has one is checked, and a value that cannot work is refused with a sentence.
"""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any, get_args

import msgspec

from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.struct import Struct, field
from zonewise.api.text import yamltext
from zonewise.proxy.settings import PRIMARY, Conntrack, LocalMode, ProxySettings
from zonewise.runtime.serving.address import is_address, parse_listen
from zonewise.traffic.routes.service import RouteSettings

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"


class _Masquerade(Struct):
    masquerade_all: bool | None = None
    masquerade_bit: int | None = None


class _DetectLocal(Struct):
    bridge_interface: str = ""
    interface_name_prefix: str = ""


class _Connection(Struct):
    kubeconfig: str = ""


class _Conntrack(Struct):
    max_per_core: int | None = None
    min: int | None = None
    tcp_established_timeout: str | None = None
    tcp_close_wait_timeout: str | None = None
    tcp_be_liberal: bool | None = None
    udp_timeout: str | None = None
    udp_stream_timeout: str | None = None


class Configuration(Struct):
    """The fields that are read."""

    api_version: str = API_VERSION
    kind: str = KIND
    mode: str | None = None
    hostname_override: str | None = None
    client_connection: _Connection = _Connection()
    cluster_cidr: str | None = field(name="clusterCIDR", default=None)
    detect_local_mode: str | None = None
    detect_local: _DetectLocal = _DetectLocal()
    iptables: _Masquerade = _Masquerade()
    nftables: _Masquerade = _Masquerade()
    node_port_addresses: tuple[str, ...] | None = None
    bind_address: str = ""
    healthz_bind_address: str | None = None
    metrics_bind_address: str | None = None
    conntrack: _Conntrack = _Conntrack()

    def with_flags(
        self,
        *,
        bridge_interface: str | None,
        interface_name_prefix: str | None,
        masquerade_all: bool | None,
        masquerade_bit: int | None,
        **fields: Any,
    ) -> Configuration:
        """The same with what was given on the command line."""
        chosen = self.iptables if self.mode in ("iptables", "ipvs") else self.nftables
        local = self.detect_local
        # In the file an empty text is the default, on the command line it switches it off.
        changed: dict[str, Any] = {
            "healthz_bind_address": self.healthz_bind_address or None,
            "metrics_bind_address": self.metrics_bind_address or None,
        }
        changed |= {name: value for name, value in fields.items() if value is not None}
        return msgspec.structs.replace(
            self,
            mode="nftables",
            nftables=_Masquerade(
                masquerade_all=chosen.masquerade_all if masquerade_all is None else masquerade_all,
                masquerade_bit=chosen.masquerade_bit if masquerade_bit is None else masquerade_bit,
            ),
            detect_local=_DetectLocal(
                bridge_interface=bridge_interface or local.bridge_interface,
                interface_name_prefix=interface_name_prefix or local.interface_name_prefix,
            ),
            **changed,
        )

    def settings(self, routing: RouteSettings) -> ProxySettings:
        """All of it, checked."""
        if not self.hostname_override:
            raise ConfigError("--node-name is missing; give it the name of this machine's Node")
        modes: dict[str, LocalMode] = {mode_name: mode_name for mode_name in get_args(LocalMode)}
        mode = modes.get(self.detect_local_mode or "ClusterCIDR")
        if mode is None:
            raise ConfigError(
                f"--detect-local-mode {self.detect_local_mode} is unknown; choose one of "
                + ", ".join(modes)
            )
        interface = ""
        if mode == "BridgeInterface":
            interface = self.detect_local.bridge_interface
        elif mode == "InterfaceNamePrefix":
            interface = self.detect_local.interface_name_prefix
        if mode in ("BridgeInterface", "InterfaceNamePrefix"):
            _check_interface(mode, interface)
        defaults = ProxySettings(node_name=self.hostname_override)
        six = ":" in self.bind_address
        bit = self.nftables.masquerade_bit
        if bit is not None and not 0 <= bit <= 31:
            raise ConfigError(f"masqueradeBit is {bit}; a packet mark has the bits 0 to 31")
        return ProxySettings(
            node_name=self.hostname_override,
            routing=routing,
            detect_local_mode=mode,
            cluster_cidrs=cidrs("--cluster-cidr", (self.cluster_cidr or "").split(",")),
            pod_interface=interface,
            masquerade_all=bool(self.nftables.masquerade_all),
            masquerade_bit=defaults.masquerade_bit if bit is None else bit,
            nodeport_addresses=_nodeport_addresses(self.node_port_addresses),
            healthz_listen=_listen(
                "--healthz-bind-address",
                self.healthz_bind_address,
                "[::]:10256" if six else defaults.healthz_listen,
            ),
            metrics_listen=_listen(
                "--metrics-bind-address",
                self.metrics_bind_address,
                "[::1]:10249" if six else defaults.metrics_listen,
            ),
            conntrack=Conntrack(
                max_per_core=self.conntrack.max_per_core,
                min=self.conntrack.min,
                tcp_established_timeout=self.conntrack.tcp_established_timeout,
                tcp_close_wait_timeout=self.conntrack.tcp_close_wait_timeout,
                tcp_be_liberal=self.conntrack.tcp_be_liberal,
                udp_timeout=self.conntrack.udp_timeout,
                udp_stream_timeout=self.conntrack.udp_stream_timeout,
            ),
        )


def read_configuration(file: str) -> Configuration:
    """The configuration in a file."""
    try:
        document = yamltext.read(Path(file).read_bytes()).value
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"cannot read {file}: {why}; give --config another file") from error
    except ParseError as error:
        why = str(error).removeprefix("yaml: ")
        raise ConfigError(f"{file} is not YAML: {why}; give --config a {KIND}") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigError(f"{file} is not a {KIND}; its kind must say so")
    if document.get("apiVersion") != API_VERSION:
        raise ConfigError(f"{file} has apiVersion {document.get('apiVersion')}, not {API_VERSION}")
    try:
        return msgspec.convert(_present(document), Configuration)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {error}") from error


def _present(value: Any) -> Any:
    """Without nulls: a null field counts as absent."""
    if isinstance(value, dict):
        return {key: _present(entry) for key, entry in value.items() if entry is not None}
    return value


def cidrs(flag: str, texts: list[str]) -> tuple[str, ...]:
    """The networks that a flag names, each checked."""
    networks = tuple(text.strip() for text in texts if text.strip())
    for text in networks:
        try:
            ip_network(text, strict=False)
        except ValueError:
            raise ConfigError(
                f"{flag}: {text!r} is not a network; write it like 10.244.0.0/16"
            ) from None
    return networks


def _nodeport_addresses(given: tuple[str, ...] | None) -> tuple[str, ...]:
    if not given or given == (PRIMARY,):
        return (PRIMARY,)
    if PRIMARY in given:
        raise ConfigError(f"--nodeport-addresses: {PRIMARY!r} cannot be combined with networks")
    return cidrs("--nodeport-addresses", list(given))


def _check_interface(mode: str, name: str) -> None:
    if not name:
        flag = "bridge-interface" if mode == "BridgeInterface" else "interface-name-prefix"
        raise ConfigError(f"--detect-local-mode {mode} needs --pod-{flag}")
    if len(name) > 15 or any(letter.isspace() or letter in '/"*' for letter in name):
        raise ConfigError(f"{name!r} cannot be the name of a network interface")


def _listen(flag: str, given: str | None, default: str) -> str:
    """Where to listen; an address alone gets the usual port."""
    if not given:
        return default if given is None else ""
    if is_address(given):
        host = f"[{given}]" if ":" in given else given
        given = f"{host}:{default.rpartition(':')[2]}"
    parse_listen(given, flag, default)
    return given
