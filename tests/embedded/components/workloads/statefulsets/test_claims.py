"""The owners of claims of a StatefulSet's pods."""

from __future__ import annotations

import msgspec
import pytest

from zonewise.api.meta import LabelSelector, ObjectMeta, OwnerReference
from zonewise.api.objects.apps import StatefulSet, StatefulSetRetention, StatefulSetSpec
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.embedded.components.workloads.statefulsets import claims

POD = Pod(metadata=ObjectMeta(name="db-1", uid="pod"))
TEMPLATE = {"metadata": {"name": "data", "labels": {"kind": "data", "app": "x"}}, "spec": {"a": 1}}


def group(deleted: str = "Retain", scaled: str = "Retain") -> StatefulSet:
    """A set with a policy."""
    policy = StatefulSetRetention(when_deleted=deleted, when_scaled=scaled)
    return StatefulSet(
        metadata=ObjectMeta(name="db", namespace="default", uid="set"),
        spec=StatefulSetSpec(
            selector=LabelSelector(match_labels={"app": "db"}),
            volume_claim_templates=(msgspec.Raw(msgspec.json.encode(TEMPLATE)),),
            persistent_volume_claim_retention_policy=policy,
        ),
    )


def claim(*owners: OwnerReference) -> PersistentVolumeClaim:
    """A claim of these owners."""
    return PersistentVolumeClaim(metadata=ObjectMeta(name="data-db-1", owner_references=owners))


OURS = owner_reference(group())
PODS = owner_reference(POD)
OTHER = OwnerReference(api_version="v1", kind="Other", name="o", uid="other")


def test_claims_are_named_after_template_set_and_number() -> None:
    """Labels are the template's and the selector's, which wins."""
    (volume, draft), *_ = claims.draft_claims(group(), 7).items()
    assert (volume, draft.metadata.name) == ("data", "data-db-7")
    assert draft.metadata.labels == {"kind": "data", "app": "db"}
    assert bytes(draft.spec) == b'{"a":1}'


@pytest.mark.parametrize(
    ("deleted", "scaled", "condemned", "expected"),
    [
        ("Retain", "Retain", False, ()),
        ("Retain", "Retain", True, ()),
        ("Delete", "Retain", False, (OURS,)),
        ("Delete", "Retain", True, (OURS,)),
        ("Retain", "Delete", False, ()),
        ("Retain", "Delete", True, (PODS,)),
        ("Delete", "Delete", False, (OURS,)),
        ("Delete", "Delete", True, (PODS,)),
    ],
)
def test_the_policy_says_who_owns_a_claim(
    deleted: str, scaled: str, condemned: bool, expected: tuple[OwnerReference, ...]
) -> None:
    """The policy sets the owners; foreign owners stay, and a correct claim is not changed."""
    for before in ((), (OURS,), (PODS,), (OURS, PODS)):
        given = claims.desired_owners(
            claim(OTHER, *before), group(deleted, scaled), POD, condemned=condemned
        )
        assert given == (None if before == expected else (OTHER, *expected))


def test_an_owner_becomes_the_controller() -> None:
    """A reference without control is replaced."""
    weak = msgspec.structs.replace(OURS, controller=None)
    assert claims.desired_owners(claim(weak), group("Delete"), POD, condemned=False) == (OURS,)


def test_claims_of_former_owners_are_left_alone() -> None:
    """A claim of a former set or pod will be garbage collected."""
    former = msgspec.structs.replace(PODS, uid="former")
    assert (
        claims.desired_owners(claim(former), group("Delete", "Delete"), POD, condemned=False)
        is None
    )
    assert claims.is_stale(claim(former), "db-1")
    assert not claims.is_stale(claim(OURS), "db-1")


def test_another_controller_keeps_its_claim() -> None:
    """The policy is ignored for a claim with another controller; our references are removed."""
    manager = msgspec.structs.replace(OTHER, controller=True)
    policy = group("Delete", "Delete")
    assert claims.has_conflicting_controller(claim(manager), policy, POD)
    assert claims.desired_owners(claim(manager), policy, POD, condemned=False) is None
    assert claims.desired_owners(claim(manager, OURS), policy, POD, condemned=False) == (manager,)
    assert not claims.has_conflicting_controller(claim(manager), group(), POD)
