"""Who may connect to the programs: API servers to the webhook, scrapers to metrics.

API servers are not pods: on most clusters they are on the networks of nodes or of the provider, so
they are named by networks; where a tunnel calls for them (konnectivity), its agents are pods, named
by their namespace. Only the administrator knows either. A port whose callers are not named is open:
closed, every eviction in a namespace that has opted in would be refused, and every alert about
metrics would fire. An annotation says which ports are open to everybody, and which flag ends that.

Kubelets reach the pods of their own node whatever a policy says, so probes need no rule.
"""

from __future__ import annotations

from ipaddress import ip_network

from zonewise.install.wanted import WEBHOOK, Installation, Obj, selector

NOTE = "zonewise.io/open-ports"


def network_policy(wanted: Installation, name: str) -> Obj:
    """What the pods of a program may be reached at, and from where."""
    callers = {"metrics": ("--metrics-from", wanted.metrics_from)}
    if name == WEBHOOK:
        callers = {"webhook": ("--webhook-from", wanted.webhook_from), **callers}
    metadata = wanted.metadata(name)
    unnamed = {port: flag for port, (flag, peers) in callers.items() if not peers}
    if unnamed:
        flags = " and ".join(unnamed.values())
        note = f"{' and '.join(unnamed)}: open to everybody; name who may connect with {flags}"
        metadata["annotations"] = {NOTE: note}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": [_allowed(port, peers) for port, (_, peers) in callers.items()],
        },
    }


def _allowed(port: str, peers: tuple[str, ...]) -> Obj:
    rule: Obj = {"ports": [{"port": port, "protocol": "TCP"}]}
    return rule | ({"from": [_peer(peer) for peer in peers]} if peers else {})


def _peer(peer: str) -> Obj:
    if is_network(peer):
        return {"ipBlock": {"cidr": str(ip_network(peer))}}
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": peer}}}


def is_network(peer: str) -> bool:
    """Whether a caller is named by its network; otherwise it is by its namespace."""
    try:
        ip_network(peer)
    except ValueError:
        return False
    return True
