"""What a cluster was made from, remembered in the cluster itself.

A cluster is planted once. The ConfigMap ``zonewise-system/origin`` is written when that is done, so
that the next start on the same folder plants nothing: what its owner has deleted stays deleted. A
start that was cut off before leaves no such word, and the next one plants what is missing.
"""

from __future__ import annotations

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Namespace
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.client.client import Client

NAMESPACE = "zonewise-system"
NAME = "origin"

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))


async def recorded(client: Client) -> str | None:
    """What the cluster was made from, or None if nothing was planted yet."""
    try:
        found = await client.get(ConfigMap, NAME, NAMESPACE)
    except NotFound:
        return None
    return str(found.get("data", "from", default=""))


async def record(client: Client, origin: str) -> None:
    """Remember it."""
    await ensure_namespace(client)
    await client.apply(ConfigMap, NAME, NAMESPACE, {"data": {"from": origin}}, force=True)


async def ensure_namespace(client: Client) -> None:
    """Make the namespace of our own objects, if it does not exist."""
    try:
        await client.create(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
    except AlreadyExists:
        return
