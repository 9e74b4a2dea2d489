"""Ceph's blocklist: addresses that no OSD and no mds answers any more.

An address has a nonce that no other client ever has, so an entry affects one client only. It stays
for a year: a zone that was lost may come back after weeks.
"""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.csi.backends.ceph.connection import CephConnection

BLOCKLIST_SECONDS = 365 * 24 * 3600


def block(ceph: CephConnection, addresses: Iterable[str]) -> None:
    """Let no OSD that we use afterwards answer these addresses."""
    for address in addresses:
        ceph.mon_command(
            "osd blocklist", blocklistop="add", addr=address, expire=float(BLOCKLIST_SECONDS)
        )
    ceph.wait_for_newest_map()


def unblock(ceph: CephConnection, addresses: Iterable[str]) -> None:
    """Let clients in again; those that are not blocklisted any more are in already."""
    for address in addresses:
        ceph.mon_command("osd blocklist", blocklistop="rm", addr=address)


def list_blocked(ceph: CephConnection) -> frozenset[str]:
    """The addresses that are blocklisted now."""
    return frozenset(ceph.mon_command("osd dump")["blocklist"])
