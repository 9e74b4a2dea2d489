"""Role-based access control, without a server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zonewise.embedded.apiserver.auth.authorization import (
    MASTERS,
    AccessAttributes,
    Authorizer,
    PolicyRule,
    refusal_message,
)
from zonewise.embedded.apiserver.request.call import User

BOB = User("bob", ("devs",))


def role(*rules: dict[str, list[str]]) -> dict[str, object]:
    """A role with these rules."""
    return {"rules": list(rules)}


def binding(kind: str, name: str, *subjects: dict[str, str]) -> dict[str, object]:
    """A binding of a role to subjects."""
    return {"roleRef": {"kind": kind, "name": name}, "subjects": list(subjects)}


READ_PODS = {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}
USER_BOB = {"kind": "User", "name": "bob"}


def test_nothing_is_allowed_without_a_role() -> None:
    """A user without bindings may do nothing."""
    assert not Authorizer().authorize(BOB, AccessAttributes(verb="get", resource="pods")).allowed


def test_masters_need_no_role() -> None:
    """Members of system:masters may do everything, whatever the roles say."""
    owner = User("anybody", (MASTERS,))
    assert (
        Authorizer()
        .authorize(owner, AccessAttributes(verb="delete", resource="nodes", name="n"))
        .allowed
    )


def test_role_binding_holds_in_its_namespace_only() -> None:
    """A RoleBinding gives a ClusterRole's rules in its own namespace and nowhere else."""
    roles = Authorizer()
    roles.put_role("", "reader", role(READ_PODS))
    roles.put_binding("a", "bob", binding("ClusterRole", "reader", USER_BOB))
    assert roles.authorize(
        BOB, AccessAttributes(verb="get", resource="pods", namespace="a")
    ).allowed
    assert not roles.authorize(
        BOB, AccessAttributes(verb="get", resource="pods", namespace="b")
    ).allowed
    assert not roles.authorize(BOB, AccessAttributes(verb="list", resource="pods")).allowed


def test_cluster_role_binding_holds_everywhere() -> None:
    """A ClusterRoleBinding holds in every namespace and across them, also for groups."""
    roles = Authorizer()
    roles.put_role("", "reader", role(READ_PODS))
    roles.put_binding(
        "", "devs", binding("ClusterRole", "reader", {"kind": "Group", "name": "devs"})
    )
    assert roles.authorize(BOB, AccessAttributes(verb="list", resource="pods")).allowed
    verdict = roles.authorize(BOB, AccessAttributes(verb="get", resource="pods", namespace="x"))
    assert 'ClusterRoleBinding "devs"' in verdict.reason
    assert 'Group "devs"' in verdict.reason


def test_changes_take_effect_at_once() -> None:
    """A cached decision is dropped when a role or a binding changes."""
    roles = Authorizer()
    act = AccessAttributes(verb="get", resource="pods")
    roles.put_role("", "reader", role(READ_PODS))
    roles.put_binding("", "b", binding("ClusterRole", "reader", USER_BOB))
    assert roles.authorize(BOB, act).allowed
    roles.put_binding("", "b", None)
    assert not roles.authorize(BOB, act).allowed
    roles.put_binding("", "b", binding("ClusterRole", "reader", USER_BOB))
    roles.put_role("", "reader", None)
    assert not roles.authorize(BOB, act).allowed


def test_names_and_subresources_are_precise() -> None:
    """Rules for one object or one subresource allow nothing else."""
    rule = PolicyRule.parse(
        {
            "verbs": ["update"],
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": ["web"],
        }
    )
    scale = AccessAttributes(
        verb="update", group="apps", resource="deployments", subresource="scale", name="web"
    )
    assert rule.allows(scale)
    assert not rule.allows(
        AccessAttributes(verb="update", group="apps", resource="deployments", name="web")
    )
    other = AccessAttributes(
        verb="update", group="apps", resource="deployments", subresource="scale", name="other"
    )
    assert not rule.allows(other)


def test_any_resource_with_a_subresource() -> None:
    """`*/scale` allows the scale of every resource and nothing else."""
    rule = PolicyRule.parse({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/scale"]})
    assert rule.allows(AccessAttributes(verb="get", resource="replicasets", subresource="scale"))
    assert not rule.allows(AccessAttributes(verb="get", resource="replicasets"))


def test_paths_match_by_prefix() -> None:
    """A path rule with a star at its end covers what is below."""
    rule = PolicyRule.parse({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/api/*"]})
    assert rule.allows(AccessAttributes(verb="get", path="/healthz"))
    assert rule.allows(AccessAttributes(verb="get", path="/api/v1"))
    assert not rule.allows(AccessAttributes(verb="get", path="/healthz/ping"))


def test_escalation_names_what_is_missing() -> None:
    """A user cannot grant permissions that they do not have."""
    roles = Authorizer()
    roles.put_role("", "reader", role(READ_PODS))
    roles.put_binding("", "b", binding("ClusterRole", "reader", USER_BOB))
    requested = PolicyRule.parse(
        {"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods"]}
    )
    missing = roles.missing_rules(BOB, "", [requested])
    assert [rule.verbs for rule in missing] == [frozenset({"delete"})]


def test_refusals_read_as_a_real_servers() -> None:
    """The message of a refusal names user, verb, resource, group and scope."""
    act = AccessAttributes(verb="list", group="apps", resource="deployments", namespace="x")
    assert refusal_message(BOB, act) == (
        'User "bob" cannot list resource "deployments" in API group "apps" in the namespace "x"'
    )


WORDS = st.lists(st.sampled_from(["get", "list", "delete", "*"]), min_size=1, max_size=3)


@given(WORDS, WORDS)
def test_covering_agrees_with_allowing(granted: list[str], requested: list[str]) -> None:
    """A rule that covers another allows all that the other allows."""
    mine = PolicyRule.parse({"verbs": granted, "apiGroups": [""], "resources": ["pods"]})
    other = PolicyRule.parse({"verbs": requested, "apiGroups": [""], "resources": ["pods"]})
    if all(mine.covers(part) for part in other.break_down()):
        for verb in ("get", "list", "delete", "watch"):
            act = AccessAttributes(verb=verb, resource="pods")
            assert mine.allows(act) or not other.allows(act)
