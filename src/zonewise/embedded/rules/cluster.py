"""Namespaces, Nodes and Events."""

from __future__ import annotations

from zonewise.embedded.rules import names
from zonewise.embedded.rules.base import Obj, Rules, Scene

KEEPER = "kubernetes"


class NamespaceRules(Rules):
    """A namespace stays until its content is gone: its own finalizers are in its spec."""

    selectable = frozenset({"status.phase"})

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none."""
        return names.label(name)

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        return {"status.phase": (obj.get("status") or {}).get("phase", "")}

    def prepare_create(self, obj: Obj, scene: Scene) -> None:
        """A new namespace is active and keeps itself."""
        finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
        if KEEPER not in finalizers:
            finalizers.append(KEEPER)
        obj["status"] = {"phase": "Active"}

    def prepare_update(self, obj: Obj, old: Obj, scene: Scene) -> None:
        """Only ``finalize`` changes the finalizers of the spec."""
        if scene.subresource != "finalize":
            obj["spec"] = old.get("spec") or {}

    def on_mark(self, obj: Obj, scene: Scene) -> None:
        """A namespace that is to go says so."""
        obj.setdefault("status", {})["phase"] = "Terminating"

    def held(self, obj: Obj) -> bool:
        """It is kept while its spec has finalizers."""
        return bool((obj.get("spec") or {}).get("finalizers"))


class NodeRules(Rules):
    """Nodes: a kubelet that registers brings its status along."""

    takes_status = True
    selectable = frozenset({"spec.unschedulable"})

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        cordoned = (obj.get("spec") or {}).get("unschedulable")
        return {"spec.unschedulable": "true" if cordoned else "false"}

    def prepare_create(self, obj: Obj, scene: Scene) -> None:
        """The first range of addresses is also the only one where just one is given."""
        spec = obj.setdefault("spec", {})
        if spec.get("podCIDR") and not spec.get("podCIDRs"):
            spec["podCIDRs"] = [spec["podCIDR"]]


class EventRules(Rules):
    """Events, in whichever of their two groups."""

    selectable = frozenset(
        {
            *(
                f"involvedObject.{key}"
                for key in (
                    "kind",
                    "namespace",
                    "name",
                    "uid",
                    "apiVersion",
                    "resourceVersion",
                    "fieldPath",
                )
            ),
            "reason",
            "reportingComponent",
            "source",
            "type",
        }
    )

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        about = obj.get("involvedObject") or {}
        source = (obj.get("source") or {}).get("component") or obj.get("reportingComponent", "")
        found = {
            f"involvedObject.{key}": str(about.get(key, ""))
            for key in (
                "kind",
                "namespace",
                "name",
                "uid",
                "apiVersion",
                "resourceVersion",
                "fieldPath",
            )
        }
        return found | {
            "reason": obj.get("reason", ""),
            "reportingComponent": obj.get("reportingComponent", ""),
            "source": source,
            "type": obj.get("type", ""),
        }
