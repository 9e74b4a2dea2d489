"""The kernel's netfilter over netlink, without any library: tables, flows, and notices of changes.

One thing is asked of another part of the kernel: the addresses of interfaces.

Measured against libnftables and ``nft``: see the record on the proxy in ``docs/design``.
"""

from zonewise.proxy.netlink.addresses import interface_addresses
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
    "interface_addresses",
]
