"""Who may do what: tokens, impersonation, RBAC and its own protection, reviews."""

from __future__ import annotations

from typing import Any

from tests.contract.samples import BY_KIND, RBAC, RULES
from tests.contract.talking import Api
from tests.contract.waiting import wait_until_permitted

Obj = dict[str, Any]
REVIEWS = "/apis/authorization.k8s.io/v1"


def grant(api: Api, user: str, *rules: Obj, name: str = "r") -> None:
    """Grant rules to a user in the namespace."""
    here = api.group(f"{RBAC}/v1")
    api.create(
        f"{here}/roles",
        {"metadata": {"name": name}, "rules": list(rules)},
        quiet=True,
        expect="201 Created",
    )
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
    }
    api.create(f"{here}/rolebindings", binding, quiet=True, expect="201 Created")


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> Obj:
    """A rule."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


def test_roles(api: Api) -> None:
    """A role allows its verbs on its resources and names, and nothing else."""
    user = f"joe-{api.ns}"
    path = f"{api.core}/configmaps"
    api.create(path, {"metadata": {"name": "a"}}, expect="201 Created")
    api.get(path, user=user, expect="403 Forbidden")
    grant(api, user, rule("get list", "configmaps"), rule("get", "secrets", resourceNames=["s"]))
    wait_until_permitted(api, path, user=user)
    api.get(f"{path}/a", user=user, expect="200 OK")
    refused = api.create(path, {"metadata": {"name": "b"}}, user=user, expect="403 Forbidden")
    assert f'User "{user}" cannot create resource "configmaps"' in refused.message
    api.patch(f"{path}/a", {}, user=user, expect="403 Forbidden")
    api.delete(f"{path}/a", user=user, expect="403 Forbidden")
    api.delete(path, user=user, expect="403 Forbidden")
    api.get(path, user=user, watch="1", timeoutSeconds="1", expect="403 Forbidden")
    api.get(f"{api.core}/secrets/s", user=user, expect="404 NotFound")
    api.get(f"{api.core}/secrets/t", user=user, expect="403 Forbidden")
    api.get(f"{api.core}/secrets", user=user, expect="403 Forbidden")
    api.get("/api/v1/configmaps", user=user, expect="403 Forbidden")
    api.get(f"{api.core}/pods/p/log", user=user, expect="403 Forbidden")
    api.apply(
        f"{path}/new",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}},
        user=user,
        expect="403 Forbidden",
    )
    api.get("/version", user=user, quiet=True, expect="200 OK")
    api.get("/metrics", user=user, expect="403 Forbidden")
    api.get("/apis/nothing/v1/things", user=user, expect="403 Forbidden")
    api.get("/apis/nothing/v1/things", expect="404 Not Found")


def test_update_creates(api: Api) -> None:
    """A user who may update Leases but not create them cannot create one by a PUT."""
    user = f"joe-{api.ns}"
    grant(api, user, rule("get list update patch", "leases", "coordination.k8s.io"))
    path = api.group("coordination.k8s.io/v1") + "/leases"
    wait_until_permitted(api, path, user=user)
    body = {"metadata": {"name": "l"}}
    api.put(f"{path}/l", body, user=user, expect="403 Forbidden")
    whole = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body}
    api.apply(f"{path}/l", whole, user=user, expect="403 Forbidden")


def test_escalation(api: Api) -> None:
    """No user can grant permissions that they do not have, except with the verb escalate."""
    user = f"joe-{api.ns}"
    grant(
        api,
        user,
        rule("get create update patch", "roles rolebindings", RBAC),
        rule("get", "pods"),
    )
    here = api.group(f"{RBAC}/v1")
    wait_until_permitted(api, f"{here}/roles/r", user=user)
    api.create(
        f"{here}/roles",
        {"metadata": {"name": "same"}, "rules": RULES},
        user=user,
        expect="201 Created",
    )
    more = {"metadata": {"name": "more"}, "rules": [rule("get delete", "pods secrets")]}
    refused = api.create(f"{here}/roles", more, user=user, expect="403 Forbidden")
    assert "attempting to grant RBAC permissions not currently held" in refused.message
    api.patch(f"{here}/roles/same", {"rules": more["rules"]}, user=user, expect="403 Forbidden")
    api.patch(
        f"{here}/roles/same", {"metadata": {"labels": {"l": "1"}}}, user=user, expect="200 OK"
    )
    binding = {
        "metadata": {"name": "up"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
    }
    api.create(f"{here}/rolebindings", binding, user=user, expect="403 Forbidden")
    own = {**binding, "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "same"}}
    api.create(f"{here}/rolebindings", own, user=user, expect="201 Created")
    grant(api, user, rule("*", "roles", RBAC), name="all")
    boss = f"boss-{api.ns}"
    grant(api, boss, rule("*", "roles", RBAC), name="boss")
    wait_until_permitted(api, f"{here}/roles/r", user=boss)
    api.create(
        f"{here}/roles", {**more, "metadata": {"name": "high"}}, user=boss, expect="201 Created"
    )
    api.patch(f"{here}/rolebindings/r", {"roleRef": {"name": "other"}}, expect="422 Invalid")


def test_impersonation(api: Api) -> None:
    """The impersonated user decides; a refused impersonation says which permission is missing."""
    user = f"joe-{api.ns}"
    group = {"groups": ("system:masters",)}
    api.get(f"{api.core}/secrets", user=user, **group, expect="200 OK")
    account = f"system:serviceaccount:{api.ns}:default"
    api.get(f"{api.core}/secrets", user=account, expect="403 Forbidden")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    api.create(path, review, user=account, expect="201 Created")
    api.create(path, review, user=user, groups=("a", "b"), expect="201 Created")
    extra = {"Impersonate-Extra-Scopes": "x", "Impersonate-Uid": "u-1"}
    api.create(path, review, user=user, headers=extra, expect="201 Created")
    token = api.create(f"{api.core}/serviceaccounts/default/token", {}, quiet=True).body
    secret = token["status"]["token"]
    refused = api.get(
        f"{api.core}/pods", token=secret, headers={"Impersonate-User": "x"}, expect="403 Forbidden"
    )
    assert "impersonate-on:user-info:" in refused.message
    api.get(f"{api.core}/pods", headers={"Impersonate-Group": "x"}, expect="400 BadRequest")


def test_strangers(api: Api) -> None:
    """Requests without a token, or with an unknown one, are refused."""
    # A real server may be configured to accept system:anonymous; ours never does.
    assert api.get(f"{api.core}/pods", token="", quiet=True).status in {401, 403}
    api.get(f"{api.core}/pods", token="nonsense", expect="401 Unauthorized")
    api.get("/api", token="nonsense", expect="401 Unauthorized")


def test_tokens(api: Api) -> None:
    """A service account's token is valid for its account; requests for tokens are validated."""
    path = f"{api.core}/serviceaccounts/default/token"
    created = api.create(
        path, {"spec": {"expirationSeconds": 3600}}, quiet=True, expect="201 Created"
    )
    token = created.body["status"]["token"]
    refused = api.get(f"{api.core}/secrets", token=token, expect="403 Forbidden")
    assert f"system:serviceaccount:{api.ns}:default" in refused.message
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    seen = api.create(reviews, {**review, "spec": {"token": token}}, quiet=True).body["status"]
    assert seen["authenticated"] is True
    assert seen["user"]["username"] == f"system:serviceaccount:{api.ns}:default"
    bad = api.create(reviews, {**review, "spec": {"token": "x"}}, quiet=True).body["status"]
    assert not bad.get("authenticated")
    other = {**review, "spec": {"token": token, "audiences": ["other"]}}
    assert not api.create(reviews, other, quiet=True).body["status"].get("authenticated")
    api.create(path, {"spec": {"expirationSeconds": 10}}, expect="422 Invalid")
    api.create(path, {"spec": {"expirationSeconds": 2**33}}, expect="422 Invalid")
    api.create(f"{api.core}/serviceaccounts/none/token", {}, expect="404 NotFound")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "none"}
    api.create(path, {"spec": {"boundObjectRef": bound}}, expect="404 NotFound")
    api.create(
        path, {"spec": {"boundObjectRef": {**bound, "kind": "ConfigMap"}}}, expect="400 BadRequest"
    )
    api.get(path, expect="405 MethodNotAllowed")


def test_reviews(api: Api) -> None:
    """An access review predicts how the server would answer a request."""
    user = f"joe-{api.ns}"
    grant(api, user, rule("get list", "pods"))
    wait_until_permitted(api, f"{api.core}/pods", user=user)
    requested = {"namespace": api.ns, "verb": "get", "resource": "pods"}
    mine = {"spec": {"resourceAttributes": requested}}
    for attributes, allowed in (
        (requested, True),
        ({**requested, "verb": "delete"}, False),
        ({**requested, "namespace": "other"}, False),
        ({**requested, "verb": "*"}, False),
        ({**requested, "resource": "*"}, False),
        ({**requested, "subresource": "log"}, False),
    ):
        body = {"spec": {"resourceAttributes": attributes}}
        answer = api.create(
            f"{REVIEWS}/selfsubjectaccessreviews", body, user=user, quiet=True, expect="201 Created"
        )
        assert answer.body["status"]["allowed"] is allowed, attributes
        api.note("may", [attributes, answer.status, answer.body["status"]["allowed"]])
    paths = {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}}}
    assert api.create(f"{REVIEWS}/selfsubjectaccessreviews", paths, user=user, quiet=True).body[
        "status"
    ]["allowed"]
    about = {"spec": {**mine["spec"], "user": user}}
    whole = api.create(f"{REVIEWS}/subjectaccessreviews", about, quiet=True, expect="201 Created")
    assert whole.body["status"]["allowed"] is True
    local = f"{api.group('authorization.k8s.io/v1')}/localsubjectaccessreviews"
    inside = {"metadata": {"namespace": api.ns}, **about}
    assert api.create(local, inside, quiet=True).body["status"]["allowed"] is True
    api.create(f"{REVIEWS}/selfsubjectaccessreviews", {"spec": {}}, expect="422 Invalid")
    api.create(f"{REVIEWS}/subjectaccessreviews", {"spec": mine["spec"]}, expect="422 Invalid")
    api.create(
        local,
        {"spec": {**about["spec"], "resourceAttributes": {**requested, "namespace": "x"}}},
        expect="422 Invalid",
    )
    rules = api.create(
        f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {"namespace": api.ns}}, user=user, quiet=True
    ).body["status"]
    assert rules["incomplete"] is False
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]} in rules[
        "resourceRules"
    ]
    api.create(f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {}}, expect="400 BadRequest")
    api.get(f"{REVIEWS}/selfsubjectaccessreviews", expect="405 MethodNotAllowed")


def test_forms(api: Api) -> None:
    """A role's rules are validated, and the role of a binding cannot change."""
    here = api.group(f"{RBAC}/v1")
    for number, role_rule in enumerate(
        (
            {"apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"]},
            {"nonResourceURLs": ["/x"], "verbs": ["get"]},
            {"resources": ["pods"], "verbs": ["get"]},
        )
    ):
        api.create(
            f"{here}/roles",
            {"metadata": {"name": f"r{number}"}, "rules": [role_rule]},
            expect="422 Invalid",
        )
    fields = BY_KIND["RoleBinding"].fields
    cases: list[tuple[Obj, str]] = [
        ({"roleRef": {**fields["roleRef"], "kind": "Pod"}}, "422 Invalid"),
        ({"roleRef": {**fields["roleRef"], "apiGroup": ""}}, "201 Created"),
        ({"subjects": [{"kind": "User", "name": "x"}]}, "201 Created"),
        ({"subjects": [{"kind": "ServiceAccount", "name": "x"}]}, "201 Created"),
        ({"subjects": [{"kind": "Robot", "name": "x"}]}, "422 Invalid"),
    ]
    for number, (more, expected) in enumerate(cases):
        body = {"metadata": {"name": f"b{number}"}, **fields, **more}
        api.create(f"{here}/rolebindings", body, expect=expected)
