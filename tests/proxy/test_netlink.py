"""nf_tables over netlink, checked with nft itself."""

from __future__ import annotations

import errno
import json
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest
from tests.netns.spaces import ip, nft

from zonewise.proxy.netlink import conntrack, nftables
from zonewise.proxy.netlink.draws import draw_chain
from zonewise.proxy.netlink.nftables import IPV4, IPV6, SetForm
from zonewise.proxy.netlink.notices import Notices, Touched
from zonewise.proxy.netlink.socket import NetlinkError, NetlinkSocket
from zonewise.proxy.tables import ruleset

FRAME = """
table ip zonewise {
  map services { type ipv4_addr . inet_proto . inet_service : verdict; }
  map endpoints {
    typeof numgen random mod 2 . ip daddr . meta l4proto . th dport : ip daddr . th dport
  }
  set ranges { type ipv4_addr . inet_service . ipv4_addr; flags interval; }
  chain there { accept
  }
}
"""
VERDICT, VALUE, RANGES = SetForm("verdict"), SetForm("value"), SetForm(ranges=True)


def way(last: int) -> bytes:
    return bytes((10, 96, 0, last, 6, 0, 0, 0, 0, 80, 0, 0))


def slot(number: int, last: int) -> bytes:
    return struct.pack("=I", number) + way(last)


def target(last: int) -> bytes:
    return bytes((10, 244, 0, last, 0x1F, 0x90, 0, 0))


def listed(kind: str, name: str) -> object:
    text = nft_here("-j", "list", kind, "ip", "zonewise", name)
    return json.loads(text)["nftables"][1][kind].get("elem")


def nft_here(*words: str, script: str | None = None) -> str:
    done = subprocess.run(["nft", *words], check=True, capture_output=True, text=True, input=script)
    return done.stdout


@pytest.fixture
def link(netns: str) -> Iterator[NetlinkSocket]:
    nft(netns, "-f", "-", script=FRAME)
    with NetlinkSocket() as opened:
        yield opened


def test_elements_are_what_nft_reads(link: NetlinkSocket) -> None:
    """Elements written over netlink are listed by nft, and read back as they were written."""
    services = [(way(1), b"goto there"), (way(2), b"drop")]
    endpoints = [(slot(0, 1), target(5)), (slot(1, 1), target(6))]
    ranges = [(bytes((10, 0, 0, 1, 0, 80, 0, 0, 192, 168, 0, 0)) * 2, b"")]
    ranges[0] = (ranges[0][0][:12] + bytes((10, 0, 0, 1, 0, 80, 0, 0, 192, 168, 0, 255)), b"")
    link.transaction(
        [
            *nftables.put(IPV4, "zonewise", "services", VERDICT, services),
            *nftables.put(IPV4, "zonewise", "endpoints", VALUE, endpoints),
            *nftables.put(IPV4, "zonewise", "ranges", RANGES, ranges),
        ]
    )
    assert listed("map", "services") == [
        [{"concat": ["10.96.0.1", "tcp", 80]}, {"goto": {"target": "there"}}],
        [{"concat": ["10.96.0.2", "tcp", 80]}, {"drop": None}],
    ]
    assert listed("map", "endpoints") == [
        [{"concat": [i, "10.96.0.1", "tcp", 80]}, {"concat": [f"10.244.0.{5 + i}", 8080]}]
        for i in range(2)
    ]
    prefix = {"prefix": {"addr": "192.168.0.0", "len": 24}}
    assert listed("set", "ranges") == [{"concat": ["10.0.0.1", 80, prefix]}]
    for name, shape, put in (
        ("services", VERDICT, services),
        ("endpoints", VALUE, endpoints),
        ("ranges", RANGES, ranges),
    ):
        assert nftables.elements(link, IPV4, "zonewise", name, shape) == dict(put)


def test_a_transaction_is_all_or_nothing_and_names_the_culprit(link: NetlinkSocket) -> None:
    """A message that fails undoes those before it, and the error has its index."""
    good = nftables.put(IPV4, "zonewise", "services", VERDICT, [(way(1), b"drop")])
    bad = nftables.remove(IPV4, "zonewise", "services", VERDICT, [way(9)])
    with pytest.raises(NetlinkError, match="No such file") as caught:
        link.transaction([*good, *bad])
    assert (caught.value.index, caught.value.code) == (1, errno.ENOENT)
    assert nftables.elements(link, IPV4, "zonewise", "services", VERDICT) == {}


def test_a_verdict_to_a_chain_that_is_not_there_is_refused(link: NetlinkSocket) -> None:
    """An element must lead to a chain that exists."""
    bad = nftables.put(IPV4, "zonewise", "services", VERDICT, [(way(1), b"goto nowhere")])
    with pytest.raises(NetlinkError):
        link.transaction(list(bad))


def test_a_transaction_may_be_larger_than_a_socket_buffer(link: NetlinkSocket) -> None:
    """Forty thousand elements are one transaction, and one dump."""
    many = {
        struct.pack(">I", number) + way(1)[:4] + way(1)[4:]: target(number % 250)
        for number in range(40_000)
    }
    link.transaction(list(nftables.put(IPV4, "zonewise", "endpoints", VALUE, many.items())))
    assert nftables.elements(link, IPV4, "zonewise", "endpoints", VALUE) == many
    link.transaction(list(nftables.remove(IPV4, "zonewise", "endpoints", VALUE, many)))
    assert nftables.elements(link, IPV4, "zonewise", "endpoints", VALUE) == {}


def test_chains_and_sets_are_listed_and_removed(link: NetlinkSocket) -> None:
    """Chains are listed with their number of rules; a chain that is in use cannot be removed."""
    assert nftables.chains(link, IPV4, "zonewise") == {"there": 1}
    assert nftables.sets(link, IPV4, "zonewise") == {"services", "endpoints", "ranges"}
    put = nftables.put(IPV4, "zonewise", "services", VERDICT, [(way(1), b"goto there")])
    link.transaction(list(put))
    with pytest.raises(NetlinkError) as caught:
        link.transaction(list(nftables.delete_chain(IPV4, "zonewise", "there")))
    assert caught.value.code == errno.EBUSY
    link.transaction(list(nftables.remove(IPV4, "zonewise", "services", VERDICT, [way(1)])))
    link.transaction(list(nftables.delete_chain(IPV4, "zonewise", "there")))
    link.transaction([nftables.delete_set(IPV4, "zonewise", "ranges")])
    assert nftables.chains(link, IPV4, "zonewise") == {}
    assert nftables.has_table(link, IPV4, "zonewise")
    assert not nftables.has_table(link, IPV6, "zonewise")
    link.transaction([nftables.delete_table(IPV4, "zonewise")])
    assert not nftables.has_table(link, IPV4, "zonewise")


@pytest.mark.parametrize("family", ruleset.FAMILIES)
@pytest.mark.parametrize(
    "name", ["slots-1", "slots-7", "outside-3", "nodeport-slots-2", "nodeport-outside-1"]
)
def test_a_chain_that_draws_is_the_same_as_text_and_as_messages(
    netns: str, family: ruleset.FamilyName, name: str
) -> None:
    """``nft`` lists the chain made over netlink exactly as the one made from text."""
    slots = ruleset.Slots(name)
    frame = ruleset.frame(family, ruleset.FrameSettings())
    word = ruleset.protocol_word(family)
    nft_here("-f", "-", script=frame + slots.text(family))
    from_text = nft_here("list", "chain", word, "zonewise", name)
    nft_here("flush", "ruleset")
    nft_here("-f", "-", script=frame)
    with NetlinkSocket() as link:
        link.transaction(
            draw_chain(
                IPV4 if family == "IPv4" else IPV6,
                "zonewise",
                name,
                slots.kind.endpoints.name,
                draws=slots.draws,
                by_address=slots.kind.by_address,
            )
        )
    assert nft_here("list", "chain", word, "zonewise", name) == from_text
    assert from_text.count("dnat") == len(slots.draws)


def test_notices_are_about_changes_of_our_table_by_others(link: NetlinkSocket) -> None:
    """Own transactions and other tables are ignored; elements and rules are distinguished."""
    notices = Notices("zonewise", but=link.port, own=())
    link.transaction(list(nftables.put(IPV4, "zonewise", "services", VERDICT, [(way(1), b"drop")])))
    nft_here("add", "table", "ip", "other")
    assert notices.touched() is Touched.NOTHING
    nft_here("flush", "map", "ip", "zonewise", "services")
    assert notices.touched() is Touched.ELEMENTS
    nft_here("add", "rule", "ip", "zonewise", "there", "drop")
    assert notices.touched() is Touched.RULES
    assert notices.touched() is Touched.NOTHING
    notices.close()


def test_notices_of_our_own_helpers_are_left_out(link: NetlinkSocket) -> None:
    """Changes by a process of nft that we started are ignored."""
    own: list[int] = []
    notices = Notices("zonewise", but=link.port, own=own)
    words = ["nft", "add", "rule", "ip", "zonewise", "there", "drop"]
    with subprocess.Popen(words) as process:
        own.append(process.pid)
    assert notices.touched() is Touched.NOTHING
    notices.close()


@pytest.mark.parametrize(
    ("family", "rewritten", "plain"),
    [(IPV4, "127.0.0.9", "127.0.0.1"), (IPV6, "fd96::9", "::1")],
    ids=["IPv4", "IPv6"],
)
def test_udp_flows_are_found_by_their_target_and_removed_once(
    netns: str, family: nftables.NetlinkFamily, rewritten: str, plain: str
) -> None:
    """A rewritten flow is found by address and port; after removal it is gone."""
    four = family == IPV4
    ip([f"addr add {rewritten}/{32 if four else 128} dev lo"], name=netns)
    word = "ip" if four else "ip6"
    rules = f"table {word} t {{\n chain c {{\n type nat hook output priority -100\n"
    rule = f" {word} daddr {rewritten} dnat to {plain}\n }}\n}}\n"
    nft_here("-f", "-", script=rules + rule)
    kind = socket.AF_INET if four else socket.AF_INET6
    with socket.socket(kind, socket.SOCK_DGRAM) as sender:
        for where in ((rewritten, 999), (rewritten, 1000), (plain, 999)):
            sender.sendto(b"?", where)
    with NetlinkSocket() as link:
        flows = list(conntrack.flows(link, family, target=rewritten, port=999))
        assert [(f.target, f.target_port, f.answered_by, f.rewritten) for f in flows] == [
            (rewritten, 999, plain, True)
        ]
        assert len(list(conntrack.flows(link, family, target=rewritten))) == 2
        to_port = {flow.target for flow in conntrack.flows(link, family, port=999)}
        assert to_port == {rewritten, plain}
        assert len(list(conntrack.flows(link, family))) == 3
        assert conntrack.remove(link, family, flows[0])
        assert not conntrack.remove(link, family, flows[0])
        assert len(list(conntrack.flows(link, family))) == 2
