"""The kernel's netfilter over netlink, without any library: tables, flows, and notices of changes.

Measured against libnftables and ``nft``: see the record on the proxy in ``docs/design``.
"""

from zonewise.proxy.netlink.namespace import HOME, NetworkNamespace
from zonewise.proxy.netlink.notices import Notices, Touched
from zonewise.proxy.netlink.socket import Interrupted, NetlinkError, NetlinkSocket

__all__ = [
    "HOME",
    "Interrupted",
    "NetlinkError",
    "NetlinkSocket",
    "NetworkNamespace",
    "Notices",
    "Touched",
]
