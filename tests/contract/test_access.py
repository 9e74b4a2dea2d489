"""Who may do what: tokens, impersonation, RBAC and its own protection, reviews."""

from __future__ import annotations

from typing import Any

from tests.contract.samples import BY_KIND, RBAC, RULES
from tests.contract.talking import Api
from tests.contract.waiting import permitted

Obj = dict[str, Any]
REVIEWS = "/apis/authorization.k8s.io/v1"


def grant(api: Api, user: str, *rules: Obj, name: str = "r") -> None:
    """Let somebody do something in the namespace."""
    here = api.group(f"{RBAC}/v1")
    api.made(f"{here}/roles", {"metadata": {"name": name}, "rules": list(rules)}, quiet=True)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
    }
    api.made(f"{here}/rolebindings", binding, quiet=True)


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> Obj:
    """A rule."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


def test_roles(api: Api) -> None:
    """A role gives its verbs on its resources and names, and nothing beside."""
    user = f"joe-{api.ns}"
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "a"}})
    assert api.get(path, user=user).status == 403
    grant(api, user, rule("get list", "configmaps"), rule("get", "secrets", resourceNames=["s"]))
    permitted(api, path, user=user)
    assert api.get(f"{path}/a", user=user).status == 200
    refused = api.create(path, {"metadata": {"name": "b"}}, user=user)
    assert (refused.status, refused.reason) == (403, "Forbidden")
    assert f'User "{user}" cannot create resource "configmaps"' in refused.message
    api.patch(f"{path}/a", {}, user=user)
    api.delete(f"{path}/a", user=user)
    api.delete(path, user=user)
    api.get(path, user=user, watch="1", timeoutSeconds="1")
    assert api.get(f"{api.core}/secrets/s", user=user).status == 404
    assert api.get(f"{api.core}/secrets/t", user=user).status == 403
    assert api.get(f"{api.core}/secrets", user=user).status == 403
    assert api.get("/api/v1/configmaps", user=user).status == 403
    assert api.get(f"{api.core}/pods/p/log", user=user).status == 403
    api.apply(
        f"{path}/new",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}},
        user=user,
    )
    assert api.get("/version", user=user, quiet=True).status == 200
    assert api.get("/metrics", user=user).status == 403
    assert api.get("/apis/nothing/v1/things", user=user).status == 403
    assert api.get("/apis/nothing/v1/things").status == 404


def test_update_creates(api: Api) -> None:
    """Who may update a Lease but not create one cannot make one by a PUT."""
    user = f"joe-{api.ns}"
    grant(api, user, rule("get list update patch", "leases", "coordination.k8s.io"))
    path = api.group("coordination.k8s.io/v1") + "/leases"
    permitted(api, path, user=user)
    body = {"metadata": {"name": "l"}}
    api.put(f"{path}/l", body, user=user)
    whole = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body}
    api.apply(f"{path}/l", whole, user=user)


def test_escalation(api: Api) -> None:
    """Nobody grants what they do not hold, unless told that they may."""
    user = f"joe-{api.ns}"
    grant(
        api,
        user,
        rule("get create update patch", "roles rolebindings", RBAC),
        rule("get", "pods"),
    )
    here = api.group(f"{RBAC}/v1")
    permitted(api, f"{here}/roles/r", user=user)
    api.create(f"{here}/roles", {"metadata": {"name": "same"}, "rules": RULES}, user=user)
    more = {"metadata": {"name": "more"}, "rules": [rule("get delete", "pods secrets")]}
    refused = api.create(f"{here}/roles", more, user=user)
    assert refused.status == 403
    assert "attempting to grant RBAC permissions not currently held" in refused.message
    api.patch(f"{here}/roles/same", {"rules": more["rules"]}, user=user)
    api.patch(f"{here}/roles/same", {"metadata": {"labels": {"l": "1"}}}, user=user)
    binding = {
        "metadata": {"name": "up"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
    }
    assert api.create(f"{here}/rolebindings", binding, user=user).status == 403
    own = {**binding, "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "same"}}
    assert api.create(f"{here}/rolebindings", own, user=user).status == 201
    grant(api, user, rule("*", "roles", RBAC), name="all")
    boss = f"boss-{api.ns}"
    grant(api, boss, rule("*", "roles", RBAC), name="boss")
    permitted(api, f"{here}/roles/r", user=boss)
    assert (
        api.create(f"{here}/roles", {**more, "metadata": {"name": "high"}}, user=boss).status == 201
    )
    api.patch(f"{here}/rolebindings/r", {"roleRef": {"name": "other"}})


def test_impersonation(api: Api) -> None:
    """Who is impersonated decides; who may not impersonate is told for what."""
    user = f"joe-{api.ns}"
    group = {"groups": ("system:masters",)}
    assert api.get(f"{api.core}/secrets", user=user, **group).status == 200
    account = f"system:serviceaccount:{api.ns}:default"
    assert api.get(f"{api.core}/secrets", user=account).status == 403
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    api.create(path, review, user=account)
    api.create(path, review, user=user, groups=("a", "b"))
    extra = {"Impersonate-Extra-Scopes": "x", "Impersonate-Uid": "u-1"}
    api.create(path, review, user=user, headers=extra)
    token = api.create(f"{api.core}/serviceaccounts/default/token", {}, quiet=True).body
    secret = token["status"]["token"]
    refused = api.get(f"{api.core}/pods", token=secret, headers={"Impersonate-User": "x"})
    assert refused.status == 403
    assert "impersonate-on:user-info:" in refused.message
    api.get(f"{api.core}/pods", headers={"Impersonate-Group": "x"})


def test_strangers(api: Api) -> None:
    """Nobody's requests, and those of somebody unknown, are refused."""
    # A real server may be told to let nobody in as system:anonymous; ours never does.
    assert api.get(f"{api.core}/pods", token="", quiet=True).status in {401, 403}
    assert api.get(f"{api.core}/pods", token="nonsense").status == 401
    assert api.get("/api", token="nonsense").status == 401


def test_tokens(api: Api) -> None:
    """A service account's token is good for its account, and its words are checked."""
    path = f"{api.core}/serviceaccounts/default/token"
    made = api.create(path, {"spec": {"expirationSeconds": 3600}}, quiet=True)
    assert made.status == 201
    token = made.body["status"]["token"]
    refused = api.get(f"{api.core}/secrets", token=token)
    assert refused.status == 403
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
    api.create(path, {"spec": {"expirationSeconds": 10}})
    api.create(path, {"spec": {"expirationSeconds": 2**33}})
    api.create(f"{api.core}/serviceaccounts/none/token", {})
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "none"}
    api.create(path, {"spec": {"boundObjectRef": bound}})
    api.create(path, {"spec": {"boundObjectRef": {**bound, "kind": "ConfigMap"}}})
    api.get(path)


def test_reviews(api: Api) -> None:
    """The server says beforehand what it would say to a request."""
    user = f"joe-{api.ns}"
    grant(api, user, rule("get list", "pods"))
    permitted(api, f"{api.core}/pods", user=user)
    asked = {"namespace": api.ns, "verb": "get", "resource": "pods"}
    mine = {"spec": {"resourceAttributes": asked}}
    for attributes in (
        asked,
        {**asked, "verb": "delete"},
        {**asked, "namespace": "other"},
        {**asked, "verb": "*"},
        {**asked, "resource": "*"},
        {**asked, "subresource": "log"},
    ):
        body = {"spec": {"resourceAttributes": attributes}}
        answer = api.create(f"{REVIEWS}/selfsubjectaccessreviews", body, user=user, quiet=True)
        api.note("may", [attributes, answer.status, answer.body["status"]["allowed"]])
    paths = {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}}}
    assert api.create(f"{REVIEWS}/selfsubjectaccessreviews", paths, user=user, quiet=True).body[
        "status"
    ]["allowed"]
    about = {"spec": {**mine["spec"], "user": user}}
    whole = api.create(f"{REVIEWS}/subjectaccessreviews", about, quiet=True)
    assert whole.body["status"]["allowed"] is True
    local = f"{api.group('authorization.k8s.io/v1')}/localsubjectaccessreviews"
    inside = {"metadata": {"namespace": api.ns}, **about}
    assert api.create(local, inside, quiet=True).body["status"]["allowed"] is True
    api.create(f"{REVIEWS}/selfsubjectaccessreviews", {"spec": {}})
    api.create(f"{REVIEWS}/subjectaccessreviews", {"spec": mine["spec"]})
    api.create(
        local, {"spec": {**about["spec"], "resourceAttributes": {**asked, "namespace": "x"}}}
    )
    rules = api.create(
        f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {"namespace": api.ns}}, user=user, quiet=True
    ).body["status"]
    assert rules["incomplete"] is False
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]} in rules[
        "resourceRules"
    ]
    api.create(f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {}})
    api.get(f"{REVIEWS}/selfsubjectaccessreviews")


def test_forms(api: Api) -> None:
    """A role's rules are checked for form, and a binding's role can never change."""
    here = api.group(f"{RBAC}/v1")
    for number, one in enumerate(
        (
            {"apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"]},
            {"nonResourceURLs": ["/x"], "verbs": ["get"]},
            {"resources": ["pods"], "verbs": ["get"]},
        )
    ):
        api.create(f"{here}/roles", {"metadata": {"name": f"r{number}"}, "rules": [one]})
    fields = BY_KIND["RoleBinding"].fields
    cases: list[Obj] = [
        {"roleRef": {**fields["roleRef"], "kind": "Pod"}},
        {"roleRef": {**fields["roleRef"], "apiGroup": ""}},
        {"subjects": [{"kind": "User", "name": "x"}]},
        {"subjects": [{"kind": "ServiceAccount", "name": "x"}]},
        {"subjects": [{"kind": "Robot", "name": "x"}]},
    ]
    for number, more in enumerate(cases):
        body = {"metadata": {"name": f"b{number}"}, **fields, **more}
        api.create(f"{here}/rolebindings", body)
