"""The demo, a small shop: workloads of every kind, and a Service in each topology mode."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from zonewise.runtime.cache import dump


def shop_objects(storage_class: str | None = None) -> list[dict[str, Any]]:
    """The objects of the shop, in the namespace ``shop``; its volumes are of this class."""
    text = files(__name__).joinpath("shop.yaml").read_bytes()
    values = (entry.value for entry in dump.parse(text, "shop.yaml"))
    objects = [value for value in values if isinstance(value, dict)]
    for obj in objects:
        for claim in obj["spec"].get("volumeClaimTemplates", ()) if "spec" in obj else ():
            if storage_class is not None:
                claim["spec"]["storageClassName"] = storage_class
    return objects
