"""Paths of kinds, and names that must not change the meaning of a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import Deployment, Node, ParseError, Pod, Resource


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (Pod.resource.path(), "/api/v1/pods"),
        (Pod.resource.path("shop"), "/api/v1/namespaces/shop/pods"),
        (Pod.resource.path("shop", "web-0"), "/api/v1/namespaces/shop/pods/web-0"),
        (
            Pod.resource.path("shop", "web-0", "status"),
            "/api/v1/namespaces/shop/pods/web-0/status",
        ),
        (Node.resource.path(), "/api/v1/nodes"),
        (Node.resource.path(name="n1"), "/api/v1/nodes/n1"),
        (Node.resource.path("", "n1", "status"), "/api/v1/nodes/n1/status"),
        (Deployment.resource.path("a", "b"), "/apis/apps/v1/namespaces/a/deployments/b"),
        (
            Resource(
                "rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False
            ).path(name="system:node"),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
        ),
        (Pod.resource.path("ns", "a b?c#d"), "/api/v1/namespaces/ns/pods/a%20b%3Fc%23d"),
    ],
)
def test_paths_are_those_of_the_api(path: str, expected: str) -> None:
    """Collections, objects and subresources are where the API serves them."""
    assert path == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../secrets", "a%2Fb"])
def test_a_name_cannot_leave_its_place_in_the_path(name: str) -> None:
    """A name that would lead to another path is refused before any request."""
    with pytest.raises(ParseError, match="cannot be in a path"):
        Pod.resource.path("ns", name)
    with pytest.raises(ParseError):
        Node.resource.path(name=name)


def test_an_object_in_a_namespace_needs_the_namespace() -> None:
    """A namespaced object without a namespace is refused before any request."""
    with pytest.raises(ParseError, match="Pod 'web' is namespaced"):
        Pod.resource.path(name="web")


def test_a_subresource_needs_an_object() -> None:
    """Only objects have subresources."""
    with pytest.raises(ParseError, match="needs a name"):
        Pod.resource.path("ns", subresource="status")


def test_names_of_the_group() -> None:
    """The core group has no name in apiVersion and in qualified names; others have."""
    assert (Pod.resource.api_version, Pod.resource.qualified) == ("v1", "pods")
    assert Deployment.resource.api_version == "apps/v1"
    assert Deployment.resource.qualified == "deployments.apps"


@given(namespace=st.text(min_size=1), name=st.text(min_size=1))
def test_a_path_has_as_many_parts_as_it_should(namespace: str, name: str) -> None:
    """No name adds a segment, a query or a fragment to the path."""
    try:
        path = Pod.resource.path(namespace, name)
    except ParseError:
        return
    assert path.count("/") == 6
    assert not set("?# ") & set(path)
    assert path.isascii()
