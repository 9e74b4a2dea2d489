"""The kernel's tables become the desired ones, whatever they were before."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace
from tests.proxy.services import HERE, backend, route, service

from zonewise.api.errors import ConfigError
from zonewise.api.objects.core import Node
from zonewise.cli.main import main
from zonewise.proxy.netlink import nftables
from zonewise.proxy.netlink.notices import Touched
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.tables import kernel as kernels
from zonewise.proxy.tables.desired import Changes, Desired
from zonewise.proxy.tables.kernel import Kernel, KernelRefused, clean_up
from zonewise.proxy.tables.layout import NOTHING, lay_out
from zonewise.proxy.tables.rendering import render_tables
from zonewise.proxy.tables.ruleset import FAMILIES, FamilyName, FrameSettings, frame
from zonewise.traffic.routes.table import Backend, ServiceRoutes

SETTINGS = ProxySettings(node_name=HERE, cluster_cidrs=("10.244.0.0/16", "fd44::/48"))
NETWORKS = SETTINGS.networks(Node(), ("10.0.0.1", "fd00::1"), ("10.96.0.0/12", "fd96::/112"))

EVERYTHING = (
    service("plain", route("ClusterIP", "10.96.0.1", backend(5), backend(6, node=HERE))),
    service("empty", route("ClusterIP", "10.96.0.2")),
    service(
        "outer",
        route("LoadBalancer", "203.0.113.1", backend(5), backend(6), source="inside"),
        route(
            "LoadBalancer",
            "203.0.113.1",
            backend(6),
            source="outside",
            ranges=("10.0.0.0/8", "192.168.0.0/16"),
        ),
        route("NodePort", None, backend(5), number=30000),
        route("NodePort", None, number=30001, source="outside", action="drop"),
    ),
    service("sticky", route("ClusterIP", "10.96.0.3", backend(5), backend(7)), affinity=600),
    service(
        "six",
        route("ClusterIP", "fd96::1", backend(5, family="IPv6")),
        route("NodePort", None, backend(5, family="IPv6"), number=30002),
        family="IPv6",
        affinity=60,
    ),
    service("udp", route("ClusterIP", "10.96.0.1", backend(5), number=53), protocol="UDP"),
    service(
        "weighted",
        route("ClusterIP", "10.96.0.4", backend(5, weight=5000), backend(6), backend(7, weight=2)),
        route("NodePort", None, backend(5, weight=5000), backend(6), number=30003),
    ),
    service(
        "weighted-six",
        route(
            "ClusterIP", "fd96::4", backend(5, family="IPv6", weight=9), backend(6, family="IPv6")
        ),
        family="IPv6",
        protocol="UDP",
    ),
    service(
        "sticky-weighted",
        route("ClusterIP", "10.96.0.5", backend(5, weight=700), backend(7)),
        affinity=60,
    ),
)


def nft(*words: str, script: str | None = None) -> str:
    done = subprocess.run(["nft", *words], check=True, capture_output=True, text=True, input=script)
    return done.stdout


def compute_desired(*services: ServiceRoutes) -> Desired:
    desired = Desired()
    desired.change({routes.key: lay_out(routes, HERE) for routes in services})
    return desired


async def fill(kernel: Kernel, changes: Changes) -> None:
    """Write elements and networks."""
    await kernel.write(changes, NETWORKS)
    await kernel.write_networks(NETWORKS)


@pytest_asyncio.fixture
async def kernel(netns: str) -> AsyncIterator[Kernel]:
    tables = Kernel(SETTINGS.frames())
    tables.read()
    await tables.prepare()
    yield tables
    tables.close()


async def test_elements_are_read_back_as_written(kernel: Kernel) -> None:
    """Every kind of element is read back as it was written; a comparison finds no changes."""
    desired = compute_desired(*EVERYTHING)
    await fill(kernel, desired.replan({}))
    assert not desired.replan(kernel.read())


async def test_text_and_transaction_make_the_same_tables(kernel: Kernel) -> None:
    """``nft`` lists the same tables whether made from text or by netlink."""
    desired = compute_desired(*EVERYTHING)
    await fill(kernel, desired.replan({}))
    listed = {word: nft("list", "table", word, "zonewise") for word in ("ip", "ip6")}
    frames = {family: frame(family, options) for family, options in SETTINGS.frames().items()}
    text = render_tables(frames, desired.elements, NETWORKS, desired.chains())
    nft("flush", "ruleset")
    nft("-f", "-", script=text)
    for word, before in listed.items():
        after = nft("list", "table", word, "zonewise")
        assert sorted(_words(after)) == sorted(_words(before))
    assert not desired.replan(kernel.read())


def _words(listing: str) -> list[str]:
    """The words of a listing; the order of elements and chains is not defined."""
    return listing.replace(",", " ").split()


async def test_another_program_adopts_tables_untouched(kernel: Kernel) -> None:
    """With the same settings the tables are used as they are: nothing is replaced."""
    desired = compute_desired(*EVERYTHING)
    await fill(kernel, desired.replan({}))
    before = nft("-a", "list", "ruleset")
    second = Kernel(SETTINGS.frames())
    actual = second.read()
    await second.prepare()
    changes = desired.replan(actual)
    assert not changes
    await fill(second, changes)
    second.sweep(desired.elements, desired.chains())
    second.close()
    assert nft("-a", "list", "ruleset") == before


async def test_tables_of_other_settings_are_replaced_in_one_step(kernel: Kernel) -> None:
    """With other settings our tables are replaced; tables of others stay."""
    desired = compute_desired(*EVERYTHING)
    await fill(kernel, desired.replan({}))
    nft("add", "table", "ip", "foreign")
    changed = ProxySettings(
        node_name=HERE, cluster_cidrs=SETTINGS.cluster_cidrs, masquerade_all=True, masquerade_bit=3
    )
    second = Kernel(changed.frames())
    assert second.read() == {}
    await second.prepare()
    await fill(second, desired.replan({}))
    assert not desired.replan(second.read())
    second.close()
    listing = nft("list", "ruleset")
    assert "0x00000008" in listing
    assert "0x00004000" not in listing
    assert "table ip foreign" in listing


async def test_a_failed_transaction_changes_nothing(kernel: Kernel) -> None:
    """One element that cannot be removed undoes the whole write."""
    desired = compute_desired(EVERYTHING[0])
    await fill(kernel, desired.replan({}))
    before = kernel.read()
    stale = compute_desired(*EVERYTHING).replan({})
    stale.remove.append(next(iter(desired.elements))[:-1] + b"\x77")
    with pytest.raises(Exception, match="the kernel refused"):
        await kernel.write(stale, NETWORKS)
    assert kernel.read() == before


async def test_unused_chains_and_sets_are_swept(kernel: Kernel) -> None:
    """Chains and client maps of removed Services and choices are removed."""
    desired = compute_desired(*EVERYTHING)
    await fill(kernel, desired.replan({}))
    sticky = service("sticky", route("ClusterIP", "10.96.0.3", backend(7)), affinity=600)
    changes = desired.change({sticky.key: lay_out(sticky, HERE, desired.elements)})
    await kernel.write(changes, NETWORKS)
    assert nft("list", "table", "ip", "zonewise").count("chain affinity-") == 3
    kernel.remove(changes.unused, changes.chains)
    listing = nft("list", "table", "ip", "zonewise")
    assert listing.count("chain affinity-") == listing.count("map clients-") == 2
    assert listing.count("chain weighted-") == 2
    gone = desired.change(dict.fromkeys([routes.key for routes in EVERYTHING], NOTHING))
    await kernel.write(gone, NETWORKS)
    kernel.sweep(desired.elements, [])
    listing = nft("list", "table", "ip", "zonewise")
    for word in ("slots-", "outside-1", "outside-2", "weighted-", "affinity-", "clients-"):
        assert word not in listing
    assert kernel.read() == {}


async def test_other_weights_are_another_chain(kernel: Kernel) -> None:
    """New weights are a new chain, reached by one changed element; the old one is removed."""

    def weighing(*weights: int) -> ServiceRoutes:
        backends = [backend(5 + at, weight=weight) for at, weight in enumerate(weights)]
        return service("w", route("ClusterIP", "10.96.0.4", *backends))

    first = weighing(3, 1)
    desired = compute_desired(first)
    await fill(kernel, desired.replan({}))
    changes = desired.change({first.key: lay_out(weighing(4, 1), HERE, desired.elements)})
    assert (len(changes.remove), len(changes.put)) == (1, 1)
    await kernel.write(changes, NETWORKS)
    kernel.remove(changes.unused, changes.chains)
    listing = nft("list", "table", "ip", "zonewise")
    assert listing.count("chain weighted-") == 1
    assert "numgen random mod 5 < 1 dnat" in listing
    changes = desired.change({first.key: lay_out(weighing(7, 7), HERE, desired.elements)})
    await kernel.write(changes, NETWORKS)
    kernel.remove(changes.unused, changes.chains)
    listing = nft("list", "table", "ip", "zonewise")
    assert "weighted-" not in listing
    assert "goto slots-2" in listing


async def test_any_name_of_a_service_makes_a_valid_chain_name(kernel: Kernel) -> None:
    """The kernel and nft accept the longest names, and names that look like commands."""
    long = service("x" * 63, route("ClusterIP", "10.96.0.9", backend(5), backend(6)), affinity=60)
    long = replace(long, namespace="y" * 63)
    odd = replace(long, service="é\n} flush ruleset {", namespace="ü")
    for routes in (long, odd):
        desired = compute_desired(routes)
        await fill(kernel, desired.replan(kernel.read()))
        assert desired.replan(kernel.read()).put == []
        frames = {family: frame(family, options) for family, options in SETTINGS.frames().items()}
        text = render_tables(frames, desired.elements, NETWORKS, desired.chains())
        assert "flush ruleset" not in text
        nft("flush", "ruleset")
        nft("-f", "-", script=text)


async def test_large_weights_are_scaled(kernel: Kernel) -> None:
    """Weights whose sum exceeds 31 bits are scaled, and no endpoint gets weight 0."""
    many = [
        Backend(address=f"10.245.{n >> 8}.{n & 255}", port=8080, weight=1_000_000 if n else 1)
        for n in range(2500)
    ]
    desired = compute_desired(service("w", route("ClusterIP", "10.96.0.4", *many)))
    ((_, chain),) = desired.chains()
    light, heavy, _ = chain.draws
    assert (light.count, heavy.count) == (1, 2499)
    assert light.below == 1
    assert light.of < 1 << 31
    await fill(kernel, desired.replan({}))
    assert not desired.replan(kernel.read())


async def test_only_writes_of_other_programs_are_noticed(kernel: Kernel) -> None:
    """Our own transactions and runs of nft are not reported as changes; those of others are."""
    notices = kernel.notices()
    desired = compute_desired(*EVERYTHING)
    await fill(kernel, desired.replan({}))
    assert notices.touched() is Touched.NOTHING
    nft("add", "element", "ip", "zonewise", "cluster-ips", "{ 10.9.9.9 }")
    assert notices.touched() is Touched.ELEMENTS
    changes = desired.replan(kernel.read())
    assert len(changes.remove) == 1
    notices.close()


async def test_clean_up_removes_our_tables_and_no_other(kernel: Kernel) -> None:
    """Tables of other programs stay, and a second run removes nothing."""
    nft("add", "table", "inet", "foreign")
    assert clean_up() == ["ip zonewise", "ip6 zonewise"]
    assert clean_up() == []
    assert nft("list", "tables") == "table inet foreign\n"


async def test_no_nft_is_one_sentence(netns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nft the proxy does not start, and the error says what to install."""
    monkeypatch.setattr(kernels, "NFT", "/nowhere/nft")
    kernel = Kernel(SETTINGS.frames())
    kernel.read()
    with pytest.raises(ConfigError, match="install the package nftables"):
        await kernel.prepare()
    kernel.close()


@pytest.mark.parametrize("code", [errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT])
def test_a_kernel_without_netfilter_netlink_is_one_sentence(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The proxy exits with 2 and says which kernel is needed."""

    def refuse(*_: object) -> socket.socket:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("zonewise.proxy.netlink.socket.socket.socket", refuse)
    assert main(["proxy", "--cleanup"]) == 2
    assert capsys.readouterr().err == (
        f"error: this kernel has no netfilter netlink ({os.strerror(code)}); nf_tables, in Linux "
        "5.13 or newer, is needed\n"
    )


def test_a_kernel_without_nf_tables_is_one_sentence(
    netns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel refuses the first request; the proxy exits with 2 and says what is needed."""
    # No kernel has this subsystem, so it refuses as it would without the module nf_tables.
    monkeypatch.setattr(nftables, "_GETTABLE", 250 << 8 | 1)
    assert main(["proxy", "--cleanup"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(
        "error: this kernel does not answer for nf_tables (the kernel refused: "
    )
    assert message.endswith("; Linux 5.13 or newer with nf_tables is needed\n")
    assert message.count("\n") == 1


async def test_an_error_of_nft_is_passed_on(kernel: Kernel) -> None:
    """A script that nft refuses raises an error with the first line of its message."""
    with pytest.raises(KernelRefused, match="nft failed: "):
        await kernels.run_nft("add nonsense\n", started=lambda _: None)


@pytest.mark.parametrize("pods", ["", "address", "=cni0", "veth*"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_frame_is_valid_for_nft(netns: str, family: FamilyName, pods: str) -> None:
    """``nft`` accepts the frame that any settings make."""
    for all_ in (False, True):
        options = FrameSettings(pods=pods, masquerade_all=all_, masquerade_bit=31)
        text = frame(family, options)
        nft("-f", "-", script=text)
        nft("flush", "ruleset")
