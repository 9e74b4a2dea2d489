"""What clients learn about the API before they use it."""

from __future__ import annotations

from typing import Any

from tests.contract.samples import SAMPLES
from tests.contract.talking import Api

Obj = dict[str, Any]
AGGREGATED = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"


def test_resources(api: Api) -> None:
    """Names, verbs, short names and subresources of each kind are those of a real server."""
    for group in sorted({one.api for one in SAMPLES}):
        path = f"/apis/{group}" if "/" in group else f"/api/{group}"
        found = api.get(path, quiet=True).body["resources"]
        plurals = {one.plural for one in SAMPLES if one.api == group}
        for one in sorted(found, key=lambda one: str(one["name"])):
            if one["name"].split("/")[0] in plurals:
                one.pop("storageVersionHash", None)
                api.note(one["name"], {**one, "verbs": sorted(one["verbs"])})


def test_pages(api: Api) -> None:
    """The pages of a server, and what is no page."""
    for path in ("/healthz", "/livez", "/readyz", "/healthz/ping", "/livez/nothing"):
        api.note(path, api.get(path, quiet=True).status)
    assert api.get("/api", quiet=True).body["versions"] == ["v1"]
    for path in ("/nothing", "/api/v9", "/apis/nothing", "/apis/apps/v9", "/api/v1/nothing"):
        api.note(path, api.get(path, quiet=True).status)
    for path in ("/api/v1/namespaces/x/nodes", "/api/v1/pods/x", "/api/v1/nodes/x/y"):
        api.get(path)


def test_aggregated(api: Api) -> None:
    """kubectl finds evictions and scales in the aggregated discovery."""
    core = api.get("/api", headers={"Accept": AGGREGATED}, quiet=True).body
    assert core["kind"] == "APIGroupDiscoveryList"
    resources = core["items"][0]["versions"][0]["resources"]
    pods = next(one for one in resources if one["resource"] == "pods")
    eviction = next(one for one in pods["subresources"] if one["subresource"] == "eviction")
    assert eviction["responseKind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    groups = api.get("/apis", headers={"Accept": AGGREGATED}, quiet=True).body["items"]
    apps = next(one for one in groups if one["metadata"]["name"] == "apps")
    deployments = next(
        one for one in apps["versions"][0]["resources"] if one["resource"] == "deployments"
    )
    scale = next(one for one in deployments["subresources"] if one["subresource"] == "scale")
    assert scale["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}


def test_openapi(api: Api) -> None:
    """OpenAPI says that patches take fieldValidation, and describes each kind."""
    index = api.get("/openapi/v3", quiet=True).body["paths"]
    document = api.get(index["apis/apps/v1"]["serverRelativeURL"], quiet=True).body
    path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    patch = document["paths"][path]["patch"]
    named = {one["name"] for one in patch.get("parameters", [])}
    assert {"fieldValidation", "dryRun", "fieldManager", "force"} <= named
    kind = patch["x-kubernetes-group-version-kind"]
    assert kind == {"group": "apps", "version": "v1", "kind": "Deployment"}
    schemas = document["components"]["schemas"]
    api.note("fields", sorted(schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]))
