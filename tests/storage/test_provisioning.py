"""The requirements a provisioner sends: as recorded from Kubernetes' own, and edge cases."""

from __future__ import annotations

import random

import pytest

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.storage import (
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    TopologySelectorLabelRequirement,
    TopologySelectorTerm,
)
from zonewise.storage.errors import StorageError
from zonewise.storage.placement import AccessibilityRequirement
from zonewise.storage.provisioning import (
    ProvisioningState,
    accessibility_requirement,
    provisioning_state_after,
    topology_offset,
    volume_node_affinity,
)

DRIVER = "csi.zonewise.io"
REGION, ZONE = f"topology.{DRIVER}/region", f"topology.{DRIVER}/zone"


def domain(zone: str) -> dict[str, str]:
    """The domain of a zone: a and b are in r1, c in r2."""
    return {REGION: "r2" if zone == "c" else "r1", ZONE: zone}


def csi_node(name: str, *keys: str) -> CSINode:
    """The topology that the driver reports on a node."""
    drivers = (CSINodeDriver(name=DRIVER, node_id=name, topology_keys=keys),)
    return CSINode(metadata=ObjectMeta(name=name), spec=CSINodeSpec(drivers=drivers))


NODES = {
    name: domain(name[0]) | {"kubernetes.io/hostname": name} for name in ("a1", "b1", "c1", "b2")
}
CSI_NODES = [csi_node(name, ZONE, REGION) for name in NODES]
A, B, C = domain("a"), domain("b"), domain("c")


def allowed(**values: tuple[str, ...]) -> tuple[TopologySelectorTerm, ...]:
    """The allowed topologies of a class, by the driver's keys."""
    return (
        TopologySelectorTerm(
            match_label_expressions=tuple(
                TopologySelectorLabelRequirement(key=f"topology.{DRIVER}/{name}", values=ones)
                for name, ones in values.items()
            )
        ),
    )


def test_a_selected_node() -> None:
    """A claim that waited requires all domains, rotated so that its pod's comes first."""
    got = accessibility_requirement("www-web-1", DRIVER, NODES, CSI_NODES, selected_node="b1")
    assert got == AccessibilityRequirement((A, B, C), (B, C, A))


def test_a_selected_node_strictly() -> None:
    """With strict topology only the pod's domain is required."""
    got = accessibility_requirement("x", DRIVER, NODES, CSI_NODES, selected_node="b1", strict=True)
    assert got == AccessibilityRequirement((B,), (B,))


def test_at_once() -> None:
    """A claim that binds at once requires all domains, starting at an index from its name."""
    got = accessibility_requirement("www-web-1", DRIVER, NODES, CSI_NODES)
    assert got == AccessibilityRequirement((A, B, C), (B, C, A))


def test_at_once_without_topology() -> None:
    """With immediate topology off nothing is required."""
    assert accessibility_requirement("x", DRIVER, NODES, CSI_NODES, immediate=False) is None


@pytest.mark.parametrize("immediate", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_what_the_class_allows(immediate: bool, strict: bool) -> None:
    """A class that allows some zones requires those, with the zone key only."""
    got = accessibility_requirement(
        "www-web-0",
        DRIVER,
        NODES,
        CSI_NODES,
        allowed=allowed(zone=("b", "c")),
        immediate=immediate,
        strict=strict,
    )
    assert got == AccessibilityRequirement(({ZONE: "b"}, {ZONE: "c"}), ({ZONE: "c"}, {ZONE: "b"}))


def test_claims_of_a_stateful_set() -> None:
    """Claims use the zones in turn by their ordinal, and those of one pod use the same one."""

    def first(claim: str) -> str:
        got = accessibility_requirement(claim, DRIVER, NODES, CSI_NODES)
        assert got is not None
        return got.preferred[0][ZONE]

    assert [first(f"www-web-{number}") for number in range(4)] == ["a", "b", "c", "a"]
    assert [first(f"logs-web-{number}") for number in range(3)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("claim", "same"),
    [("data-web-0", "logs-web-0"), ("web-7", "x-web-7"), ("data-web-00", "data-web-0")],
)
def test_the_index_of_a_claim(claim: str, same: str) -> None:
    """Only the set's name and the ordinal count for the index of a claim."""
    assert topology_offset(claim) == topology_offset(same)


@pytest.mark.parametrize("claim", ["data", "", "data-", "data-x", "data-４", f"data-{2**32}"])
def test_names_without_an_ordinal(claim: str) -> None:
    """Names of claims without an ordinal are hashed whole; FNV-1 of nothing is its offset."""
    assert 0 <= topology_offset(claim) < 2**32
    assert topology_offset("") == 2166136261


def test_the_order_of_nodes_does_not_matter() -> None:
    """Nodes in any order make the same requirement."""
    rng = random.Random(1)
    expected = accessibility_requirement("c", DRIVER, NODES, CSI_NODES)
    for _ in range(10):
        nodes = dict(rng.sample(list(NODES.items()), len(NODES)))
        csi_nodes = rng.sample(CSI_NODES, len(CSI_NODES))
        assert accessibility_requirement("c", DRIVER, nodes, csi_nodes) == expected


def test_nodes_with_other_keys() -> None:
    """A few nodes that report other keys do not hide the others."""
    odd = csi_node("z1", ZONE, REGION, f"topology.{DRIVER}/takeover.a")
    got = accessibility_requirement("www-web-1", DRIVER, NODES, [odd, *CSI_NODES])
    assert got == AccessibilityRequirement((A, B, C), (B, C, A))


@pytest.mark.parametrize(("driver", "csi_nodes"), [(DRIVER, []), ("other.io", CSI_NODES)])
def test_a_driver_on_no_node(driver: str, csi_nodes: list[CSINode]) -> None:
    """If no node reports keys a claim waits, rather than get a volume anywhere."""
    with pytest.raises(StorageError, match="no node has a topology"):
        accessibility_requirement("x", driver, NODES, csi_nodes)


def test_a_class_that_allows_nothing_in_particular() -> None:
    """A class whose terms are empty requires nothing."""
    assert accessibility_requirement("x", DRIVER, NODES, CSI_NODES, allowed=allowed()) is None


def test_several_keys_and_values() -> None:
    """Values of one key are alternatives, keys belong together; fewer keys come first."""
    terms = allowed(zone=("a", "b"), region=("r1",)) + allowed(zone=("c",)) + allowed()
    got = accessibility_requirement(
        "w-0", DRIVER, NODES, CSI_NODES, selected_node="b1", allowed=terms
    )
    assert got is not None
    assert got.requisite == ({ZONE: "c"}, A, B)
    assert got.preferred == (B, {ZONE: "c"}, A)


@pytest.mark.parametrize(
    ("selected", "csi_nodes", "code"),
    [
        ("gone", CSI_NODES, "NodeMissing"),
        ("b1", [], "DriverNotRegistered"),
        ("b1", [csi_node("b1")], "DriverNotRegistered"),
        ("b1", [csi_node("b1", ZONE, "other.io/rack")], "LabelsMissing"),
    ],
)
def test_a_node_that_is_not_ready(selected: str, csi_nodes: list[CSINode], code: str) -> None:
    """If the driver is not ready on the selected node, the error names it and what to do."""
    with pytest.raises(StorageError) as refused:
        accessibility_requirement("x", DRIVER, NODES, csi_nodes, selected_node=selected)
    assert refused.value.reason.code == code
    assert refused.value.reason.object == f"Node/{selected}"
    assert refused.value.reason.fix


@pytest.mark.parametrize("strict", [True, False])
def test_a_node_that_is_not_allowed(strict: bool) -> None:
    """A selected node outside of what the class allows is refused."""
    with pytest.raises(StorageError) as refused:
        accessibility_requirement(
            "x",
            DRIVER,
            NODES,
            CSI_NODES,
            selected_node="b1",
            allowed=allowed(zone=("a",)),
            strict=strict,
        )
    assert refused.value.reason.code == "NodeNotAllowed"


@pytest.mark.parametrize(
    ("code", "selected", "then"),
    [
        ("RESOURCE_EXHAUSTED", True, ProvisioningState.RESCHEDULE),
        ("RESOURCE_EXHAUSTED", False, ProvisioningState.FINISHED),
        ("ABORTED", True, ProvisioningState.BACKGROUND),
        ("UNAVAILABLE", True, ProvisioningState.BACKGROUND),
        ("CANCELLED", False, ProvisioningState.BACKGROUND),
        ("DEADLINE_EXCEEDED", False, ProvisioningState.BACKGROUND),
        ("INTERNAL", True, ProvisioningState.FINISHED),
        ("ALREADY_EXISTS", True, ProvisioningState.FINISHED),
        ("INVALID_ARGUMENT", True, ProvisioningState.FINISHED),
    ],
)
def test_after_a_failure(code: str, selected: bool, then: ProvisioningState) -> None:
    """What follows from each code is the same as in Kubernetes' own provisioner."""
    assert provisioning_state_after(code, node_selected=selected) is then


def test_the_affinity_of_a_volume() -> None:
    """Terms are alternatives in order; no terms, and empty terms, mean everywhere."""
    got = volume_node_affinity(({ZONE: "a", REGION: "r1"}, {"takeover.a": "true"}))
    assert got is not None
    assert got.required is not None
    terms = [
        [
            (expression.key, expression.operator, expression.values)
            for expression in term.match_expressions or ()
        ]
        for term in got.required.node_selector_terms or ()
    ]
    assert terms == [
        [(REGION, "In", ("r1",)), (ZONE, "In", ("a",))],
        [("takeover.a", "In", ("true",))],
    ]
    assert volume_node_affinity(()) is None
    assert volume_node_affinity(({},)) is None
