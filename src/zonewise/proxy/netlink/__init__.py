"""The kernel's netfilter over netlink, without any library: tables, flows, and notices of changes.

One thing is asked of another part of the kernel: the addresses of interfaces.

Measured against libnftables and ``nft``: see the record on the proxy in ``docs/design``.
"""
