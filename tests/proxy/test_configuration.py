"""A KubeProxyConfiguration, and the flags that override it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zonewise.api.errors import ConfigError
from zonewise.api.objects.core import Node, NodeSpec
from zonewise.cli.main import main
from zonewise.proxy.configuration import Configuration, read_configuration
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.sysctls import apply
from zonewise.traffic.routes.service import RouteSettings

KUBEADM = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/x.conf}
clusterCIDR: 10.244.0.0/16,fd44::/48
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpEstablishedTimeout: 24h0m0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
healthzBindAddress: ""
hostnameOverride: n7
iptables: {localhostNodePorts: null, masqueradeAll: true, masqueradeBit: 9, syncPeriod: 0s}
ipvs: {scheduler: "", excludeCIDRs: null}
nftables: {masqueradeAll: false, masqueradeBit: 3}
metricsBindAddress: "127.0.0.1"
mode: iptables
nodePortAddresses: [10.0.0.0/8, "2001:db8::/32"]
winkernel: {enableDSR: false}
"""


def flags(**given: Any) -> dict[str, Any]:
    absent = {
        "bridge_interface": None,
        "interface_name_prefix": None,
        "masquerade_all": None,
        "masquerade_bit": None,
    }
    return absent | given


def settings(text: str, tmp_path: Path, **given: Any) -> ProxySettings:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read_configuration(str(file)).with_flags(**flags(**given)).settings(RouteSettings())


def test_a_file_of_kubeadm_is_read_as_it_is(tmp_path: Path) -> None:
    """Fields that apply here are read, from the section of the mode in use; others are ignored."""
    proxy = settings(KUBEADM, tmp_path)
    assert proxy.node_name == "n7"
    assert proxy.cluster_cidrs == ("10.244.0.0/16", "fd44::/48")
    assert (proxy.masquerade_all, proxy.masquerade_bit) == (True, 9)
    assert proxy.nodeport_addresses == ("10.0.0.0/8", "2001:db8::/32")
    assert (proxy.healthz_listen, proxy.metrics_listen) == ("0.0.0.0:10256", "127.0.0.1:10249")
    assert proxy.conntrack.tcp_established_timeout == "24h0m0s"


def test_the_file_names_the_kubeconfig(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --kubeconfig the file's is used, as in kube-proxy; otherwise the flag's."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "environment"))
    file = tmp_path / "config.yaml"
    file.write_text(KUBEADM)
    assert main(["proxy", "--config", str(file)]) == 2
    assert "/var/lib/x.conf" in capsys.readouterr().err
    flag = str(tmp_path / "flag")
    assert main(["proxy", "--config", str(file), "--kubeconfig", flag]) == 2
    assert flag in capsys.readouterr().err


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    """A flag that was given replaces the file's value."""
    proxy = settings(
        KUBEADM, tmp_path, hostname_override="n8", masquerade_bit=4, cluster_cidr="10.0.0.0/8"
    )
    assert (proxy.node_name, proxy.masquerade_bit) == ("n8", 4)
    assert proxy.cluster_cidrs == ("10.0.0.0/8",)


@pytest.mark.parametrize(
    ("bound", "given", "healthz", "metrics"),
    [
        ("0.0.0.0", {}, "0.0.0.0:10256", "127.0.0.1:10249"),
        ('"::"', {}, "[::]:10256", "127.0.0.1:10249"),
        ("0.0.0.0", {"healthz_bind_address": "", "metrics_bind_address": ""}, "", ""),
        ("0.0.0.0", {"healthz_bind_address": "::"}, "[::]:10256", "127.0.0.1:10249"),
        ("0.0.0.0", {"metrics_bind_address": "::1"}, "0.0.0.0:10256", "[::1]:10249"),
        ('"::"', {"metrics_bind_address": ":9999"}, "[::]:10256", ":9999"),
    ],
)
def test_addresses_of_health_and_metrics(
    bound: str, given: dict[str, Any], healthz: str, metrics: str, tmp_path: Path
) -> None:
    """Empty means the default in the file and off as a flag; without a port it is the usual one."""
    text = KUBEADM.replace("bindAddress: 0.0.0.0", f"bindAddress: {bound}")
    proxy = settings(text, tmp_path, **given)
    assert (proxy.healthz_listen, proxy.metrics_listen) == (healthz, metrics)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "--node-name is missing"),
        ({"hostname_override": "n", "cluster_cidr": "10.0.0.0/33"}, "is not a network"),
        ({"hostname_override": "n", "detect_local_mode": "Guess"}, "is unknown"),
        ({"hostname_override": "n", "detect_local_mode": "BridgeInterface"}, "needs --pod-bridge"),
        (
            {
                "hostname_override": "n",
                "detect_local_mode": "InterfaceNamePrefix",
                "interface_name_prefix": 'x" drop',
            },
            "cannot be the name",
        ),
        ({"hostname_override": "n", "masquerade_bit": 32}, "bits 0 to 31"),
        (
            {"hostname_override": "n", "node_port_addresses": ("primary", "10.0.0.0/8")},
            "cannot be combined",
        ),
        ({"hostname_override": "n", "healthz_bind_address": "somewhere"}, "0.0.0.0:10256"),
        ({"hostname_override": "n", "metrics_bind_address": "[::1:10249"}, "127.0.0.1:10249"),
    ],
)
def test_invalid_settings_are_refused_in_one_sentence(given: dict[str, Any], sentence: str) -> None:
    """Every mistake is refused before anything is changed."""
    with pytest.raises(ConfigError, match=sentence):
        Configuration().with_flags(**flags(**given)).settings(RouteSettings())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "not YAML"),
        ("- 1", "is not a KubeProxyConfiguration"),
        ("kind: KubeletConfiguration", "is not a KubeProxyConfiguration"),
        ("kind: KubeProxyConfiguration\napiVersion: v2", "apiVersion v2"),
        (KUBEADM.replace("hostnameOverride: n7", "hostnameOverride: [1]"), "hostnameOverride"),
    ],
)
def test_an_invalid_file_is_refused_in_one_sentence(
    text: str, sentence: str, tmp_path: Path
) -> None:
    """The error names a file that is not a configuration or cannot be read."""
    with pytest.raises(ConfigError, match=sentence):
        settings(text, tmp_path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_configuration(str(tmp_path / "nowhere"))


def test_networks_by_mode() -> None:
    """Local pods are recognised by the cluster's networks, the node's, or an interface."""
    node = Node(spec=NodeSpec(pod_cidrs=("10.244.3.0/24", "fd44:3::/64")))
    addresses = ("10.0.0.1", "fd00::1")
    by_node = ProxySettings(node_name="n", detect_local_mode="NodeCIDR")
    networks = by_node.networks(node, addresses, ("10.96.0.0/12", "fd96::/112"))
    assert networks["IPv4"]["pods"] == ("10.244.3.0/24",)
    assert networks["IPv6"]["service-cidrs"] == ("fd96::/112",)
    assert networks["IPv6"]["nodeport-addresses"] == ("fd00::1/128",)
    assert by_node.frames()["IPv4"].pods == "address"
    bridge = ProxySettings(node_name="n", detect_local_mode="BridgeInterface", pod_interface="cni0")
    assert bridge.frames()["IPv6"].pods == "=cni0"
    four = ProxySettings(node_name="n", cluster_cidrs=("10.244.0.0/16",))
    assert [frame.pods for frame in four.frames().values()] == ["address", ""]
    beside = ProxySettings(node_name="n", routing=RouteSettings(proxy_name="zonewise"))
    assert beside.networks(node, addresses, ("10.96.0.0/12",))["IPv4"]["service-cidrs"] == ()


def test_node_ports_are_open_in_a_family_without_networks() -> None:
    """As in kube-proxy: networks or node addresses of one family do not close the other."""
    given = ProxySettings(node_name="n", nodeport_addresses=("10.0.0.0/8",))
    networks = given.networks(Node(), ("10.0.0.1", "fd00::1"), ())
    assert networks["IPv4"]["nodeport-addresses"] == ("10.0.0.0/8",)
    assert networks["IPv6"]["nodeport-addresses"] == ("::/0",)
    primary = ProxySettings(node_name="n").networks(Node(), ("fd00::1",), ())
    assert primary["IPv4"]["nodeport-addresses"] == ("0.0.0.0/0",)
    assert primary["IPv6"]["nodeport-addresses"] == ("fd00::1/128",)


def test_kernel_settings_are_raised_if_asked_and_never_lowered(tmp_path: Path) -> None:
    """Only configured kernel settings are written; a larger conntrack table stays."""
    for name, value in (
        ("nf_conntrack_max", 262144),
        ("nf_conntrack_tcp_timeout_established", 432000),
        ("nf_conntrack_udp_timeout", 30),
    ):
        (tmp_path / name).write_text(str(value))
    defaults = ProxySettings(node_name="n").conntrack
    apply(defaults, folder=tmp_path, cores=4)
    assert (tmp_path / "nf_conntrack_tcp_timeout_established").read_text() == "432000"
    conntrack = type(defaults)(max_per_core=32768, min=131072, tcp_established_timeout="24h0m0s")
    apply(conntrack, folder=tmp_path, cores=4)
    assert (tmp_path / "nf_conntrack_max").read_text() == "262144"
    assert (tmp_path / "nf_conntrack_tcp_timeout_established").read_text() == "86400"
    apply(conntrack, folder=tmp_path, cores=16)
    assert (tmp_path / "nf_conntrack_max").read_text() == "524288"
    with pytest.raises(ConfigError, match="is not a time"):
        apply(type(defaults)(udp_timeout="soon"), folder=tmp_path, cores=1)
