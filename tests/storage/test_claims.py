"""Which volume is bound to a claim."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.meta import LabelSelector, ObjectMeta, ObjectReference
from zonewise.api.objects.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from zonewise.api.objects.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    VolumeNodeAffinity,
    VolumeResources,
)
from zonewise.storage.claims import find_matching_volume, find_mismatch

ZONE = "topology.kubernetes.io/zone"
RWO, RWX = "ReadWriteOnce", "ReadWriteMany"


def claim(
    size: str = "5Gi",
    *,
    kind: str = "",
    modes: tuple[str, ...] = (RWO,),
    labels: dict[str, str] | None = None,
) -> PersistentVolumeClaim:
    """A claim."""
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name="c", namespace="n", uid="u"),
        spec=PersistentVolumeClaimSpec(
            access_modes=modes,
            storage_class_name=kind,
            resources=VolumeResources(requests={"storage": size}),
            selector=LabelSelector(match_labels=labels) if labels else None,
        ),
    )


def volume(
    name: str,
    size: str = "10Gi",
    *,
    kind: str = "",
    modes: tuple[str, ...] = (RWO,),
    zone: str = "",
    labels: dict[str, str] | None = None,
    ref: ObjectReference | None = None,
) -> PersistentVolume:
    """A volume that is not bound."""
    needs = NodeSelectorRequirement(key=ZONE, operator="In", values=(zone,))
    term = NodeSelectorTerm(match_expressions=(needs,))
    affinity = VolumeNodeAffinity(required=NodeSelector(node_selector_terms=(term,)))
    return PersistentVolume(
        metadata=ObjectMeta(name=name, labels=labels or {}),
        spec=PersistentVolumeSpec(
            capacity={"storage": size},
            access_modes=modes,
            storage_class_name=kind,
            node_affinity=affinity if zone else None,
            claim_ref=ref,
        ),
        status=PersistentVolumeStatus(phase="Available"),
    )


def node(zone: str) -> Node:
    """A node in a zone."""
    return Node(metadata=ObjectMeta(name="n1", labels={ZONE: zone}))


def chosen(
    wanting: PersistentVolumeClaim, *volumes: PersistentVolume, waits: bool = False, zone: str = ""
) -> str:
    """The name of the volume that is chosen."""
    volume = find_matching_volume(
        wanting, volumes, delay_binding=waits, node=node(zone) if zone else None
    )
    return volume.metadata.name if volume else ""


def test_the_smallest_that_is_large_enough() -> None:
    """Of the volumes that are large enough, the smallest is chosen."""
    volumes = volume("s", "1Gi"), volume("l", "50Gi"), volume("m", "6Gi")
    assert chosen(claim("5Gi"), *volumes) == "m"
    assert chosen(claim("51Gi"), *volumes) == ""
    assert chosen(claim("5368709120"), volume("exact", "5Gi")) == "exact"


def test_access_modes() -> None:
    """Every requested mode must be present; a volume with fewer other modes is preferred."""
    wide, narrow = volume("wide", "6Gi", modes=(RWO, RWX)), volume("narrow", "60Gi")
    assert chosen(claim(), wide, narrow) == "narrow"
    assert chosen(claim(modes=(RWX,)), wide, narrow) == "wide"
    assert chosen(claim(modes=("ReadOnlyMany",)), wide, narrow) == ""


def test_class_and_labels() -> None:
    """Class and selector must match exactly."""
    assert chosen(claim(kind="a"), volume("b", kind="b"), volume("none")) == ""
    assert (
        chosen(claim(labels={"disk": "ssd"}), volume("a"), volume("b", labels={"disk": "ssd"}))
        == "b"
    )


def test_a_volume_that_names_the_claim_is_reserved() -> None:
    """With the name alone it is reserved; with another uid it belongs to another claim."""
    reserved = volume("r", "90Gi", ref=ObjectReference(namespace="n", name="c"))
    taken = volume("t", "5Gi", ref=ObjectReference(namespace="n", name="c", uid="other"))
    assert chosen(claim(), reserved, taken, volume("free", "5Gi")) == "r"
    assert chosen(claim(), taken) == ""
    assert chosen(claim(), reserved, waits=True) == "r"


def test_a_claim_that_waits_gets_what_its_node_can_use() -> None:
    """No volume before a node is selected, then only volumes of its zone."""
    a, b = volume("a", zone="a"), volume("b", "99Gi", zone="b")
    assert chosen(claim(), a, b, waits=True) == ""
    assert chosen(claim(), a, b, waits=True, zone="b") == "b"
    assert chosen(claim(), a, b, waits=True, zone="c") == ""


def test_a_volume_requested_by_name_is_refused_with_a_reason() -> None:
    """The reason why a volume that was requested by name is refused has the text of Kubernetes."""
    assert find_mismatch(volume("v", "1Gi"), claim()) == "requested PV is too small"
    assert find_mismatch(volume("v", kind="x"), claim()) == "storageClassName does not match"
    assert find_mismatch(volume("v", modes=(RWX,)), claim()) == "incompatible accessMode"
    assert find_mismatch(volume("v"), claim()) == ""


SIZES = st.lists(st.integers(1, 20), max_size=8)


@given(SIZES, st.integers(1, 20), st.integers(0, 2**16))
def test_order_does_not_matter(sizes: list[int], requested: int, seed: int) -> None:
    """The same volumes in any order give the same choice, never one too small."""
    volumes = [volume(f"v{n}", f"{size}Gi") for n, size in enumerate(sizes)]
    first = chosen(claim(f"{requested}Gi"), *volumes)
    random.Random(seed).shuffle(volumes)
    assert chosen(claim(f"{requested}Gi"), *volumes) == first
    fitting = [size for size in sizes if size >= requested]
    assert bool(first) == bool(fitting)
    if first:
        assert sizes[int(first[1:])] == min(fitting)
