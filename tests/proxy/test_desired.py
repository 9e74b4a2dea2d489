"""What is desired, kept Service by Service, equals what all of them together want."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.services import HERE, backend, route, service

from zonewise.api.meta import Key
from zonewise.proxy.tables.desired import Changes, Desired
from zonewise.proxy.tables.layout import NOTHING, Layout, lay_out
from zonewise.traffic.routes import ServiceRoutes

EXTERNAL = ("203.0.113.1", "203.0.113.2", "10.96.0.3")
"""The last is a ClusterIP of somebody."""


def take(desired: Desired, services: dict[Key, ServiceRoutes | None]) -> dict[Key, Layout]:
    """Layouts as the proxier makes them; ``services`` is every Service that is known."""
    layouts: dict[Key, Layout] = {}
    woken: set[Key] = set()
    for key, routes in services.items():
        layouts[key] = NOTHING if routes is None else lay_out(routes, HERE)
        woken |= desired.claim(key, layouts[key].ways)
    everything = {**KNOWN, **services}
    for key in woken | layouts.keys():
        found = everything.get(key)
        layouts[key] = NOTHING if found is None else lay_out(found, HERE, desired.lost(key))
    return layouts


KNOWN: dict[Key, ServiceRoutes | None] = {}

services_drawn = st.builds(
    lambda number, ends, externals, affinity, heavy: service(
        f"s{number}",
        route(
            "ClusterIP",
            f"10.96.0.{number + 1}",
            *(backend(e, node=HERE, weight=heavy if e % 2 else 1) for e in sorted(ends)),
        ),
        *(
            route("ExternalIP", one, *(backend(e) for e in sorted(ends)))
            for one in sorted(externals)
        ),
        affinity=affinity,
    ),
    st.integers(0, 4),
    st.sets(st.integers(1, 6), max_size=4),
    st.sets(st.sampled_from(EXTERNAL)),
    st.sampled_from([None, None, 60]),
    st.sampled_from([1, 5, 9]),
)
steps = st.lists(st.tuples(services_drawn, st.booleans()), max_size=25)


@given(steps)
def test_change_by_change_is_the_same_as_all_at_once(
    drawn: list[tuple[ServiceRoutes, bool]],
) -> None:
    """After any changes the kernel holds what a new start would write, whoever claims what."""
    KNOWN.clear()
    desired = Desired()
    kernel: dict[bytes, bytes] = {}
    for routes, there in drawn:
        key = routes.key
        KNOWN[key] = routes if there else None
        changes = desired.change(take(desired, {key: KNOWN[key]}))
        for one in changes.remove:
            del kernel[one]
        for one, data in changes.put:
            assert one not in kernel
            kernel[one] = data
        assert kernel == desired.elements
    fresh = Desired()
    fresh.change(take(fresh, dict(sorted(KNOWN.items()))))
    assert fresh.elements == kernel
    assert sorted(fresh.choice_names()) == sorted(desired.choice_names())
    assert desired.replan(kernel) == Changes()


def test_a_change_writes_only_what_changed() -> None:
    """One endpoint replaced is one element out and one in."""
    desired = Desired()
    before = service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6), backend(7)))
    after = service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6), backend(8)))
    desired.change({before.key: lay_out(before, HERE)})
    changes = desired.change({after.key: lay_out(after, HERE)})
    assert (len(changes.remove), len(changes.put)) == (1, 1)
    assert not desired.change({after.key: lay_out(after, HERE)})


def test_an_address_of_two_services_stays_until_both_are_gone() -> None:
    """An endpoint that two Services share is one element, wanted twice."""
    desired = Desired()
    one = service("a", route("ClusterIP", "10.96.0.1", backend(5, node=HERE)))
    two = service("b", route("ClusterIP", "10.96.0.2", backend(5, node=HERE)))
    desired.change({each.key: lay_out(each, HERE) for each in (one, two)})
    first = desired.change({one.key: NOTHING})
    second = desired.change({two.key: NOTHING})
    assert (len(first.remove), len(second.remove)) == (3, 4)
    assert desired.elements == {}


def test_nobody_takes_the_cluster_ip_of_another() -> None:
    """A Service that names another's ClusterIP as its external IP gets nothing, however it came."""
    thief = service(
        "a-thief", route("ClusterIP", "10.96.0.1"), route("ExternalIP", "10.96.0.2", backend(9))
    )
    owner = service("owner", route("ClusterIP", "10.96.0.2", backend(1)))
    for order in ((thief, owner), (owner, thief)):
        KNOWN.clear()
        desired = Desired()
        for one in order:
            KNOWN[one.key] = one
            desired.change(take(desired, {one.key: one}))
        assert lay_out(owner, HERE).elements.items() <= desired.elements.items()
        assert not [
            data for data in desired.elements.values() if data.startswith(b"\x0a\xf4\x00\x09")
        ]
        KNOWN[owner.key] = None
        desired.change(take(desired, {owner.key: None}))
        assert lay_out(thief, HERE).elements == desired.elements


def test_the_difference_to_the_kernel_is_what_is_missing_wrong_or_left_over() -> None:
    """Whatever the kernel holds, the changes leads from there to what is desired."""
    desired = Desired()
    made = service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6)))
    desired.change({made.key: lay_out(made, HERE)})
    kernel = dict(desired.elements)
    keys = sorted(kernel)
    del kernel[keys[0]]
    kernel[keys[-1]] = b"something else"
    stranger = keys[0][:-1] + b"\x09"
    kernel[stranger] = b""
    changes = desired.replan(kernel)
    for one in changes.remove:
        del kernel[one]
    kernel.update(changes.put)
    assert kernel == desired.elements
    assert stranger in changes.remove
