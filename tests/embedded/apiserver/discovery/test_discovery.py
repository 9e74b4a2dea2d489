"""Discovery in both forms; equality with a real server's documents is in tests/kubernetes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from zonewise.api.errors import ApiError
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.discovery.discovery import AGGREGATED, Discovery
from zonewise.embedded.apiserver.registry import version_rank
from zonewise.embedded.apiserver.request.call import Answer, Call, User
from zonewise.embedded.machinery.schema.definitions import Definitions
from zonewise.embedded.machinery.schema.kinds import Kind, Subresource, builtin_kinds
from zonewise.embedded.machinery.schema.schema import ANY

BUILTIN = builtin_kinds(Definitions())


def custom(group: str, version: str, kind: str) -> Kind:
    """A custom resource's kind."""
    plural = f"{kind.lower()}s"
    status = Subresource("status", group, version, kind, ("get", "patch", "update"))
    return Kind(
        resource=Resource(group, version, kind, plural, True),
        singular=kind.lower(),
        list_kind=f"{kind}List",
        verbs=("get", "list"),
        build_schema=lambda: ANY,
        subresources={"status": status},
        storage=f"{group}/{plural}",
        custom=True,
    )


def ask(discovery: Discovery, path: str, **headers: str) -> Answer | None:
    """The answer to a GET."""
    call = Call(method="GET", path=path, user=User("someone"), headers=headers)
    return discovery.answer(path, call)


def answer(discovery: Discovery, path: str, **headers: str) -> Any:
    """The decoded answer to a GET."""
    response = ask(discovery, path, **headers)
    assert response is not None
    return json.loads(response.body)


def test_groups_stand_in_the_order_of_a_real_server() -> None:
    """Built-in groups keep their order; those of custom resources come last, by name."""
    kinds = (custom("b.example", "v1", "B"), custom("a.example", "v1", "A"), *BUILTIN)
    names = [group["name"] for group in answer(Discovery(kinds), "/apis")["groups"]]
    assert names[:2] == ["apiregistration.k8s.io", "apps"]
    assert names[-2:] == ["a.example", "b.example"]


def test_versions_stand_best_first() -> None:
    """Versions are in the order stable, beta, alpha, then higher before lower; unknown forms are
    last by name.
    """
    versions = ["foo10", "v1", "v2alpha1", "v10", "v3beta1", "foo2", "v11beta2", "v12alpha1", "v2"]
    assert sorted(versions, key=version_rank) == [
        "v10",
        "v2",
        "v1",
        "v11beta2",
        "v3beta1",
        "v12alpha1",
        "v2alpha1",
        "foo10",
        "foo2",
    ]
    kinds = [custom("a.example", version, "A") for version in ("v1alpha1", "v1", "v2")]
    group = answer(Discovery(kinds), "/apis/a.example")
    assert group["preferredVersion"] == {"groupVersion": "a.example/v2", "version": "v2"}


def test_resources_name_the_kinds_of_subresources() -> None:
    """kubectl needs the group of evictions and the kind of scales."""
    resources = {
        resource["name"]: resource
        for resource in answer(Discovery(BUILTIN), "/api/v1")["resources"]
    }
    assert resources["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": ["create"],
    }
    assert resources["pods"]["shortNames"] == ["po"]
    assert "group" not in resources["pods/status"]


def test_aggregated_discovery_says_everything_at_once() -> None:
    """One document of aggregated discovery has all groups and kinds, the built-in ones in short
    form.
    """
    discovery = Discovery((*BUILTIN, custom("a.example", "v1", "A")))
    response = ask(discovery, "/apis", accept=f"{AGGREGATED},application/json")
    assert response is not None
    assert response.content_type == AGGREGATED
    items = {item["metadata"]["name"]: item for item in json.loads(response.body)["items"]}
    deployments = next(
        resource
        for resource in items["apps"]["versions"][0]["resources"]
        if resource["resource"] == "deployments"
    )
    assert deployments["responseKind"] == {"group": "", "version": "", "kind": "Deployment"}
    scale = next(sub for sub in deployments["subresources"] if sub["subresource"] == "scale")
    assert scale["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    (mine,) = items["a.example"]["versions"][0]["resources"]
    assert mine["responseKind"] == {"group": "a.example", "version": "v1", "kind": "A"}
    core = answer(discovery, "/api", accept=AGGREGATED)
    assert [item["metadata"] for item in core["items"]] == [{}]


def test_an_unchanged_document_is_not_sent_again() -> None:
    """A client that has the document gets 304, with the type of the document it has."""
    first = ask(Discovery(BUILTIN), "/apis", accept=AGGREGATED)
    assert first is not None
    tag = first.headers["ETag"]
    again = ask(Discovery(BUILTIN), "/apis", accept=AGGREGATED, **{"if-none-match": tag})
    assert again is not None
    assert (again.status, again.body, again.content_type) == (304, b"", AGGREGATED)
    fewer = ask(Discovery(BUILTIN[:-1]), "/apis", accept=AGGREGATED, **{"if-none-match": tag})
    assert fewer is not None
    assert fewer.status == 200


def test_old_aggregated_versions_fall_back_to_the_plain_form() -> None:
    """A client that also accepts plain JSON gets it; another is refused."""
    beta = AGGREGATED.replace("v=v2", "v=v2beta1")
    assert answer(Discovery(BUILTIN), "/apis", accept=f"{beta},application/json")["kind"] == (
        "APIGroupList"
    )
    with pytest.raises(ApiError) as refused:
        ask(Discovery(BUILTIN), "/apis", accept=beta)
    assert refused.value.code == 406


def test_yaml_is_written_for_people() -> None:
    """Discovery can be read as YAML."""
    response = ask(Discovery(BUILTIN), "/apis/apps", accept="application/yaml")
    assert response is not None
    assert yaml.safe_load(response.body)["name"] == "apps"


@pytest.mark.parametrize("path", ["/apis/none", "/apis/apps/v9", "/api/v9", "/apis/", "/api/v1/x"])
def test_unknown_paths_are_not_found(path: str) -> None:
    """Unknown groups, versions and deeper paths do not exist."""
    assert ask(Discovery(BUILTIN), path) is None


def test_a_group_goes_with_its_last_kind() -> None:
    """A group without kinds is not served."""
    kinds = [kind for kind in BUILTIN if kind.resource.group != "apps"]
    assert ask(Discovery(kinds), "/apis/apps") is None
