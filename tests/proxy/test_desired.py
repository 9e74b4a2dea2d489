"""The desired tables, updated Service by Service, equal those computed from all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.services import HERE, backend, route, service

from zonewise.api import LeanEndpointSlice, Service, convert
from zonewise.api.meta import Key
from zonewise.proxy.tables.desired import Changes, Desired, compute_desired
from zonewise.proxy.tables.layout import NOTHING, Layout, decode, lay_out
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.claims import FrontendClaims
from zonewise.traffic.routes.service import (
    compute_node_routes,
    compute_service_routes,
    frontend_claims,
)
from zonewise.traffic.routes.table import Backend, ServiceRoutes

EXTERNAL = ("203.0.113.1", "203.0.113.2", "10.96.0.3")
"""The last is the ClusterIP of a Service."""

LOCATION = ClientLocation("a", HERE)


@dataclass(frozen=True)
class Offer:
    """A Service with its slice."""

    service: Service
    piece: LeanEndpointSlice

    @property
    def key(self) -> Key:
        return self.service.key


def offer(
    number: int,
    ends: Iterable[int] = (),
    externals: Iterable[str] = (),
    affinity: int | None = None,
    heavy: int = 1,
) -> Offer:
    """Service s0, s1…; its endpoints with odd numbers are on this node and weigh more."""
    port = {"name": "p", "port": 80, "protocol": "TCP"}
    config = {"clientIP": {"timeoutSeconds": affinity}}
    sticky = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config} if affinity else {}
    weights = {"zonewise.io/zone-weights": f'{{"a":{{"a":{heavy},"b":1}}}}'}
    labels = {"kubernetes.io/service-name": f"s{number}"}
    body = {
        "metadata": {"name": f"s{number}", "namespace": "default"},
        "spec": {
            "clusterIP": f"10.96.0.{number + 1}",
            "externalIPs": sorted(externals),
            "ports": [port],
            **sticky,
        },
    }
    piece = {
        "metadata": {
            "name": f"s{number}-1",
            "namespace": "default",
            "labels": labels,
            "annotations": weights,
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [f"10.244.0.{last}"],
                "zone": "a" if last % 2 else "b",
                "nodeName": HERE if last % 2 else "n2",
            }
            for last in sorted(ends)
        ],
        "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
    }
    return Offer(convert(Service, body), convert(LeanEndpointSlice, piece))


class Node:
    """The desired tables of a node, with claims and layouts as the proxier makes them."""

    def __init__(self) -> None:
        self.known: dict[Key, Offer] = {}
        self.claims = FrontendClaims()
        self.desired = Desired()

    def take(self, *offers: Offer, gone: Iterable[Key] = ()) -> Changes:
        woken = {new.key for new in offers}.union(gone)
        for key in gone:
            self.known.pop(key, None)
            woken |= self.claims.claim(key, {})
        for new in offers:
            self.known[new.key] = new
            woken |= self.claims.claim(new.key, frontend_claims(new.service))
        return self.desired.change({key: self.layout(key) for key in woken})

    def layout(self, key: Key) -> Layout:
        known = self.known.get(key)
        if known is None:
            return NOTHING
        routes = compute_service_routes(
            known.service, [known.piece], LOCATION, {}, claims=self.claims
        )
        return lay_out(routes, HERE, self.desired.elements)


def unnumbered(elements: Mapping[bytes, bytes]) -> list[tuple[str, str, str]]:
    """Elements, without which endpoint has which slot; the numbers of used slots are listed."""
    rows = []
    slots: dict[tuple[str, str], list[str]] = {}
    ends: dict[tuple[str, str], list[str]] = {}
    for key, data in elements.items():
        _, kind, found_by, leads_to = decode(key, data)
        if kind.key[0] == "slot":
            slot, _, way = found_by.partition(" . ")
            slots.setdefault((kind.name, way), []).append(slot)
            ends.setdefault((kind.name, way), []).append(leads_to)
        else:
            rows.append((kind.name, found_by, leads_to))
    for where, numbers in slots.items():
        rows.append((*where, " ".join(sorted(numbers))))
        rows += [(*where, end) for end in ends[where]]
    return sorted(rows)


steps = st.lists(
    st.tuples(
        st.builds(
            offer,
            st.integers(0, 4),
            st.sets(st.integers(1, 6), max_size=4),
            st.sets(st.sampled_from(EXTERNAL)),
            st.sampled_from([None, None, 60]),
            st.sampled_from([1, 5, 9]),
        ),
        st.booleans(),
    ),
    max_size=25,
)


@given(steps)
def test_change_by_change_is_the_same_as_all_at_once(drawn: list[tuple[Offer, bool]]) -> None:
    """After any changes, and any conflicting claims, the kernel has what a restart would write."""
    node = Node()
    kernel: dict[bytes, bytes] = {}
    for changed, there in drawn:
        changes = node.take(changed) if there else node.take(gone=[changed.key])
        for key in changes.remove:
            del kernel[key]
        for key, data in changes.put:
            assert key not in kernel
            kernel[key] = data
        assert kernel == node.desired.elements
    fresh = Node()
    fresh.take(*(entry for _, entry in sorted(node.known.items())))
    assert unnumbered(fresh.desired.elements) == unnumbered(kernel)
    assert set(fresh.desired.chains()) == set(node.desired.chains())
    assert not node.desired.replan(kernel)
    known = node.known.values()
    routes = compute_node_routes(
        [entry.service for entry in known], [entry.piece for entry in known], LOCATION, {}
    )
    assert unnumbered(compute_desired(routes.services, HERE).elements) == unnumbered(kernel)


def test_a_change_writes_only_what_changed() -> None:
    """Replacing one endpoint removes one element and adds one."""
    desired = Desired()
    before = service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6), backend(7)))
    after = service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6), backend(8)))
    desired.change({before.key: lay_out(before, HERE)})
    changes = desired.change({after.key: lay_out(after, HERE)})
    assert (len(changes.remove), len(changes.put)) == (1, 1)
    assert not desired.change({after.key: lay_out(after, HERE)})


@pytest.mark.parametrize("affinity", [None, 60])
@pytest.mark.parametrize("weight", [1, 9])
def test_one_endpoint_of_many_is_a_few_elements(affinity: int | None, weight: int) -> None:
    """Adding or removing endpoints anywhere in the list does not change the slots of others."""
    many = [
        Backend(address=f"10.245.{n >> 8}.{n & 255}", port=8080, weight=weight if n % 2 else 1)
        for n in range(3000)
    ]

    def offered(backends: list[Backend]) -> ServiceRoutes:
        return service("s", route("ClusterIP", "10.96.0.1", *backends), affinity=affinity)

    desired = Desired()
    whole = offered(many)
    desired.change({whole.key: lay_out(whole, HERE)})
    for backends in (many[1:], many, many[:1500] + many[1502:], many[3:], many):
        layout = lay_out(offered(backends), HERE, desired.elements)
        changes = desired.change({whole.key: layout})
        assert len(changes.remove) + len(changes.put) <= 16
        assert unnumbered(desired.elements) == unnumbered(lay_out(offered(backends), HERE).elements)


def test_an_address_of_two_services_stays_until_both_are_gone() -> None:
    """An endpoint that two Services share is one element with two owners."""
    desired = Desired()
    first = service("a", route("ClusterIP", "10.96.0.1", backend(5, node=HERE)))
    second = service("b", route("ClusterIP", "10.96.0.2", backend(5, node=HERE)))
    desired.change({routes.key: lay_out(routes, HERE) for routes in (first, second)})
    removed_first = desired.change({first.key: NOTHING})
    removed_second = desired.change({second.key: NOTHING})
    assert (len(removed_first.remove), len(removed_second.remove)) == (3, 4)
    assert desired.elements == {}


def test_no_service_takes_the_cluster_ip_of_another() -> None:
    """An external IP that is another Service's ClusterIP gets no routes, whichever came first."""
    thief, owner = offer(0, [6], ["10.96.0.2"]), offer(1, [1])
    for order in ((thief, owner), (owner, thief)):
        node = Node()
        for new in order:
            node.take(new)
        alone = Node()
        alone.take(owner)
        assert alone.desired.elements.items() <= node.desired.elements.items()
        leads = [decode(*element)[2:] for element in node.desired.elements.items()]
        assert not [to for way, to in leads if " 10.96.0.2 " in way and "10.244.0.6" in to]
        node.take(gone=[owner.key])
        fresh = Node()
        fresh.take(thief)
        assert fresh.desired.elements == node.desired.elements


def test_the_difference_to_the_kernel_is_what_is_missing_wrong_or_left_over() -> None:
    """Whatever the kernel holds, the changes make it equal to the desired tables."""
    desired = Desired()
    routes = service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6)))
    desired.change({routes.key: lay_out(routes, HERE)})
    kernel = dict(desired.elements)
    keys = sorted(kernel)
    del kernel[keys[0]]
    kernel[keys[-1]] = b"something else"
    stranger = keys[0][:-1] + b"\x09"
    kernel[stranger] = b""
    changes = desired.replan(kernel)
    for key in changes.remove:
        del kernel[key]
    kernel.update(changes.put)
    assert kernel == desired.elements
    assert stranger in changes.remove
