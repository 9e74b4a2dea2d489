"""What clients learn about the API before they use it."""

from __future__ import annotations

from typing import Any

from tests.contract.samples import SAMPLES
from tests.contract.talking import Api

Obj = dict[str, Any]
AGGREGATED = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"


def test_resources(api: Api) -> None:
    """Names, verbs, short names and subresources of each kind are those of a real server."""
    for group in sorted({sample.api for sample in SAMPLES}):
        path = f"/apis/{group}" if "/" in group else f"/api/{group}"
        resources = api.get(path, quiet=True, expect="200 OK").body["resources"]
        plurals = {sample.plural for sample in SAMPLES if sample.api == group}
        assert plurals <= {resource["name"] for resource in resources}
        for resource in sorted(resources, key=lambda resource: str(resource["name"])):
            if resource["name"].split("/")[0] in plurals:
                resource.pop("storageVersionHash", None)
                api.note(resource["name"], {**resource, "verbs": sorted(resource["verbs"])})


def test_pages(api: Api) -> None:
    """Pages about health and versions are answered, and unknown paths are not found."""
    for path in ("/healthz", "/livez", "/readyz", "/healthz/ping"):
        api.note(path, api.get(path, quiet=True, expect="200 OK").status)
    api.note("/livez/nothing", api.get("/livez/nothing", quiet=True, expect="404 Not Found").status)
    assert api.get("/api", quiet=True).body["versions"] == ["v1"]
    for path in ("/nothing", "/api/v9", "/apis/nothing", "/apis/apps/v9"):
        # Where the group exists, a real server answers with a Status and ours with plain text.
        unknown = api.get(path, quiet=True)
        assert unknown.status == 404
        api.note(path, unknown.status)
    api.note(
        "/api/v1/nothing", api.get("/api/v1/nothing", quiet=True, expect="404 NotFound").status
    )
    for path in ("/api/v1/namespaces/x/nodes", "/api/v1/pods/x", "/api/v1/nodes/x/y"):
        api.get(path, expect="404 NotFound")


def test_aggregated(api: Api) -> None:
    """kubectl finds evictions and scales in the aggregated discovery."""
    core = api.get("/api", headers={"Accept": AGGREGATED}, quiet=True).body
    assert core["kind"] == "APIGroupDiscoveryList"
    resources = core["items"][0]["versions"][0]["resources"]
    pods = next(resource for resource in resources if resource["resource"] == "pods")
    eviction = next(
        subresource
        for subresource in pods["subresources"]
        if subresource["subresource"] == "eviction"
    )
    assert eviction["responseKind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    groups = api.get("/apis", headers={"Accept": AGGREGATED}, quiet=True).body["items"]
    apps = next(group for group in groups if group["metadata"]["name"] == "apps")
    deployments = next(
        resource
        for resource in apps["versions"][0]["resources"]
        if resource["resource"] == "deployments"
    )
    scale = next(
        subresource
        for subresource in deployments["subresources"]
        if subresource["subresource"] == "scale"
    )
    assert scale["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}


def test_openapi(api: Api) -> None:
    """OpenAPI says that patches take fieldValidation, and describes each kind."""
    index = api.get("/openapi/v3", quiet=True).body["paths"]
    document = api.get(index["apis/apps/v1"]["serverRelativeURL"], quiet=True).body
    path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    patch = document["paths"][path]["patch"]
    named = {parameter["name"] for parameter in patch.get("parameters", [])}
    assert {"fieldValidation", "dryRun", "fieldManager", "force"} <= named
    kind = patch["x-kubernetes-group-version-kind"]
    assert kind == {"group": "apps", "version": "v1", "kind": "Deployment"}
    schemas = document["components"]["schemas"]
    api.note("fields", sorted(schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]))
