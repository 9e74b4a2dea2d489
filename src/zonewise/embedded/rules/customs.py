"""CustomResourceDefinitions, and the rules of the resources they define."""

from __future__ import annotations

import re
from typing import Any

from zonewise.api import faults
from zonewise.api.schemafaults import version_faults
from zonewise.embedded.metadata import CLEANUP
from zonewise.embedded.rules import names
from zonewise.embedded.rules.base import Faults, Obj, Rules, Scene

_VERSION = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_PATH = re.compile(r"(\.[A-Za-z_][-A-Za-z0-9_]*)+\Z")
COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")


class DefinitionRules(Rules):
    """The rules of CustomResourceDefinitions."""

    def prepare_create(self, obj: Obj, scene: Scene) -> None:
        """A new definition is known, but its names are not accepted yet."""
        versions = (obj.get("spec") or {}).get("versions") or ()
        stored = [one.get("name", "") for one in versions if one.get("storage")]
        obj["status"] = {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": stored or None,
        }

    def prepare_update(self, obj: Obj, old: Obj, scene: Scene) -> None:
        """A new storage version joins those that may be in the store."""
        versions = (obj.get("spec") or {}).get("versions") or ()
        stored = list((obj.get("status") or {}).get("storedVersions") or ())
        for one in versions:
            if one.get("storage") and one.get("name") not in stored:
                stored.append(one["name"])
        obj["status"] = {**(obj.get("status") or {}), "storedVersions": stored}

    def on_mark(self, obj: Obj, scene: Scene) -> None:
        """A definition that is to go says so, and waits for its objects to go first."""
        finalizers = obj["metadata"].setdefault("finalizers", [])
        if CLEANUP not in finalizers:
            finalizers.append(CLEANUP)
        conditions = obj.setdefault("status", {}).get("conditions") or []
        conditions.append(
            {
                "type": "Terminating",
                "status": "True",
                "reason": "InstanceDeletionPending",
                "message": "CustomResourceDefinition marked for deletion; CustomResource deletion"
                " will begin soon",
                "lastTransitionTime": scene.now,
            }
        )
        obj["status"]["conditions"] = conditions

    def validate(self, obj: Obj, scene: Scene) -> Faults:
        """What is wrong with a definition."""
        spec = obj.get("spec") or {}
        known = spec.get("names") or {}
        found: Faults = []
        name = obj["metadata"].get("name", "")
        if name and name != f"{known.get('plural', '')}.{spec.get('group', '')}":
            text = 'must be spec.names.plural+"."+spec.group'
            found.append(faults.invalid("metadata.name", name, text))
        group = spec.get("group", "")
        if not group:
            found.append(faults.required("spec.group"))
        else:
            found += [faults.invalid("spec.group", group, text) for text in names.subdomain(group)]
            if "." not in group:
                text = "should be a domain with at least one dot"
                found.append(faults.invalid("spec.group", group, text))
        scope = spec.get("scope", "")
        if not scope:
            found.append(faults.required("spec.scope"))
        elif scope not in {"Cluster", "Namespaced"}:
            found.append(faults.unsupported("spec.scope", scope, ("Cluster", "Namespaced")))
        found += _version_faults(spec)
        found += _name_faults(known)
        found += _conversion_faults(spec)
        stored = (obj.get("status") or {}).get("storedVersions")
        if not stored:
            text = "must have at least one stored version"
            found.append(faults.invalid("status.storedVersions", stored, text))
        return found

    def validate_update(self, obj: Obj, old: Obj, scene: Scene) -> Faults:
        """Names that were accepted stay."""
        found = self.validate(obj, scene)
        accepted = _condition(old, "Established") == "True"
        if accepted:
            for path in (("scope",), ("group",), ("names", "plural"), ("names", "kind")):
                was, now = _at(old["spec"], path), _at(obj["spec"], path)
                if was != now:
                    field = ".".join(("spec", *path))
                    found.append(faults.invalid(field, now, "field is immutable"))
        served = {one.get("name") for one in obj["spec"].get("versions") or ()}
        for index, one in enumerate((obj.get("status") or {}).get("storedVersions") or ()):
            if one not in served:
                text = "missing from spec.versions; " + (
                    "must remain in spec.versions until a storage migration ensures no data remains"
                    f" persisted in {one} and removes {one} from status.storedVersions"
                )
                found.append(faults.invalid(f"status.storedVersions[{index}]", one, text))
        return found


class CustomRules(Rules):
    """The rules of resources somebody defined."""

    generation = True
    blind_update = False
    answers_deleted = False

    def __init__(self, *, has_status: bool, scale: Obj | None, selectable: tuple[str, ...]) -> None:
        self._has_status = has_status
        self._scaled = bool(scale)
        self._paths = {path.removeprefix("."): path for path in selectable}
        self.selectable = frozenset(self._paths)
        if scale:
            self.scale_paths = (
                scale.get("specReplicasPath", ".spec.replicas"),
                scale.get("statusReplicasPath", ".status.replicas"),
                scale.get("labelSelectorPath", ""),
            )

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        found = {}
        for name in self.selectable:
            value = _at(obj, tuple(name.split(".")))
            if isinstance(value, bool):
                found[name] = "true" if value else "false"
            else:
                found[name] = "" if value is None else str(value)
        return found

    def validate_status(self, obj: Obj, old: Obj, scene: Scene) -> Faults:
        """What a Scale shows must be a size."""
        if not self._scaled:
            return []
        path = self.scale_paths[1]
        value = _at(obj, tuple(path.removeprefix(".").split(".")))
        if value is None or (type(value) is int and value >= 0):
            return []
        return [faults.invalid(path, value, "should be a non-negative integer")]

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Without a status subresource a change of status counts like any other."""
        ignored = {"metadata", "apiVersion", "kind"} | ({"status"} if self._has_status else set())
        keys = (obj.keys() | old.keys()) - ignored
        return any(obj.get(key) != old.get(key) for key in keys)


def _condition(obj: Obj, kind: str) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((one.get("status", "") for one in conditions if one.get("type") == kind), "")


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _version_faults(spec: Obj) -> Faults:
    versions = spec.get("versions")
    found: Faults = []
    seen: set[str] = set()
    for index, one in enumerate(versions or ()):
        path = f"spec.versions[{index}]"
        name = one.get("name", "")
        if name in seen:
            found.append(faults.duplicate(f"{path}.name", name))
        seen.add(name)
        if not name:
            found.append(faults.required(f"{path}.name"))
        else:
            found += [faults.invalid(f"{path}.name", name, text) for text in names.label_1035(name)]
        schema = (one.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            text = "schemas are required"
            found.append(faults.required(f"{path}.schema.openAPIV3Schema", text))
        found += _scale_faults(one, f"{path}.subresources")
        found += _column_faults(one, f"{path}.additionalPrinterColumns")
    found += version_faults(spec)
    storing = [one for one in versions or () if one.get("storage")]
    if len(storing) != 1:
        text = "must have exactly one version marked as storage version"
        found.append(faults.invalid("spec.versions", versions, text))
    return found


def _scale_faults(version: Obj, path: str) -> Faults:
    scale = (version.get("subresources") or {}).get("scale")
    if scale is None:
        return []
    found: Faults = []
    for key, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        value = scale.get(key, "")
        at = f"{path}.scale.{key}"
        if not value:
            found.append(faults.required(at))
        elif not _PATH.match(value):
            found.append(faults.invalid(at, value, "must be a simple json path"))
        elif not value.startswith(f"{root}."):
            found.append(faults.invalid(at, value, f"should be a json path under {root}"))
    label = scale.get("labelSelectorPath")
    if label:
        at = f"{path}.scale.labelSelectorPath"
        if not _PATH.match(label):
            found.append(faults.invalid(at, label, "must be a simple json path"))
        elif not label.startswith((".spec.", ".status.")):
            text = "should be a json path under either .status or .spec"
            found.append(faults.invalid(at, label, text))
    return found


def _column_faults(version: Obj, path: str) -> Faults:
    found: Faults = []
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        at = f"{path}[{index}]"
        if not column.get("name"):
            found.append(faults.required(f"{at}.name"))
        kind = column.get("type", "")
        if not kind:
            text = "must be one of " + ",".join(COLUMN_TYPES)
            found.append(faults.required(f"{at}.type", text))
        elif kind not in COLUMN_TYPES:
            text = "must be one of " + ",".join(COLUMN_TYPES)
            found.append(faults.invalid(f"{at}.type", kind, text))
        style = column.get("format")
        if style and style not in FORMATS:
            text = "must be one of " + ",".join(FORMATS)
            found.append(faults.invalid(f"{at}.format", style, text))
        if not column.get("jsonPath"):
            found.append(faults.required(f"{at}.jsonPath"))
    return found


def _name_faults(known: Obj) -> Faults:
    found: Faults = []
    for key in ("plural", "singular", "kind", "listKind"):
        value = known.get(key, "")
        path = f"spec.names.{key}"
        if not value:
            found.append(faults.required(path))
            continue
        found += [faults.invalid(path, value, text) for text in names.label_1035(value.lower())]
        if key in {"plural", "singular"} and value != value.lower():
            found += [faults.invalid(path, value, text) for text in names.label_1035(value)]
    for key in ("shortNames", "categories"):
        for index, value in enumerate(known.get(key) or ()):
            found += [
                faults.invalid(f"spec.names.{key}[{index}]", value, text)
                for text in names.label_1035(value)
            ]
    if known.get("kind") and known.get("kind") == known.get("listKind"):
        text = "kind and listKind may not be the same"
        found.append(faults.invalid("spec.names.listKind", known["listKind"], text))
    return found


def _conversion_faults(spec: Obj) -> Faults:
    conversion = spec.get("conversion") or {}
    strategy = conversion.get("strategy", "")
    path = "spec.conversion.strategy"
    if not strategy:
        return [faults.required(path)]
    if strategy == "Webhook":
        text = "this server converts between versions only by their names: use None"
        return [faults.forbidden(path, text)]
    if strategy != "None":
        return [faults.unsupported(path, strategy, ("None", "Webhook"))]
    if conversion.get("webhook"):
        text = "should not be set when strategy is not set to Webhook"
        return [faults.forbidden("spec.conversion.webhook", text)]
    return []
