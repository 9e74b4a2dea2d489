"""CustomResourceDefinitions, and the rules of the resources they define."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext
from zonewise.embedded.apiserver.strategy.cluster.webhooks import (
    bundle_faults,
    client_faults,
    review_faults,
)
from zonewise.embedded.apiserver.strategy.metadata import CLEANUP, STANDARD_FINALIZERS
from zonewise.embedded.apiserver.strategy.warnings import format_warnings
from zonewise.embedded.machinery.crd.schema_validation import validate_versions

_PATH = re.compile(r"(\.[A-Za-z_][-A-Za-z0-9_]*)+\Z")
APPROVED = "api-approved.kubernetes.io"
CONFORMANT = "KubernetesAPIApprovalPolicyConformant"
POLICY = "https://github.com/kubernetes/enhancements/pull/1111"
STRATEGIES = ("None", "Webhook")
WARNING_LIMIT = 256
COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")


class DefinitionRules(LegacyRules):
    """The rules of CustomResourceDefinitions."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new definition is known, but its names are not accepted yet."""
        versions = (obj.get("spec") or {}).get("versions") or ()
        stored = [one.get("name", "") for one in versions if one.get("storage")]
        obj["status"] = {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": stored or None,
        }

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A new storage version joins those that may be in the store."""
        versions = (obj.get("spec") or {}).get("versions") or ()
        stored = list((obj.get("status") or {}).get("storedVersions") or ())
        for one in versions:
            if one.get("storage") and one.get("name") not in stored:
                stored.append(one["name"])
        obj["status"] = {**(obj.get("status") or {}), "storedVersions": stored}

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """New formats that have no meaning."""
        context.warnings.extend(format_warnings(obj, old))

    def on_mark(self, obj: Obj, context: StrategyContext) -> None:
        """A definition being deleted is Terminating, and waits until its objects are deleted."""
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
                "lastTransitionTime": context.now,
            }
        )
        obj["status"]["conditions"] = conditions

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a definition."""
        found = self._validate(obj, check_bundle=False) + _approval_faults(obj, None)
        if (obj.get("spec") or {}).get("preserveUnknownFields"):
            text = (
                "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in"
                " spec.versions[*].schema instead"
            )
            found.append(field_errors.invalid("spec.preserveUnknownFields", True, text))
        return found

    def _validate(self, obj: Obj, *, check_bundle: bool) -> Faults:
        spec = obj.get("spec") or {}
        known = spec.get("names") or {}
        found: Faults = []
        name = obj["metadata"].get("name", "")
        if name and name != f"{known.get('plural', '')}.{spec.get('group', '')}":
            text = 'must be spec.names.plural+"."+spec.group'
            found.append(field_errors.invalid("metadata.name", name, text))
        group = spec.get("group", "")
        if not group:
            found.append(field_errors.required("spec.group"))
        else:
            found += [
                field_errors.invalid("spec.group", group, text)
                for text in names.subdomain_errors(group)
            ]
            if "." not in group:
                text = "should be a domain with at least one dot"
                found.append(field_errors.invalid("spec.group", group, text))
        scope = spec.get("scope", "")
        if not scope:
            found.append(field_errors.required("spec.scope"))
        elif scope not in {"Cluster", "Namespaced"}:
            found.append(field_errors.unsupported("spec.scope", scope, ("Cluster", "Namespaced")))
        found += _version_faults(spec)
        found += _name_faults(known)
        found += _conversion_faults(spec, check_bundle)
        stored = (obj.get("status") or {}).get("storedVersions")
        if not stored:
            text = "must have at least one stored version"
            found.append(field_errors.invalid("status.storedVersions", stored, text))
        return found

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """Names that were accepted stay."""
        accepted = _condition(old, "Established") == "True"
        found = self._validate(obj, check_bundle=accepted and not bad_bundle(old))
        found += _approval_faults(obj, old)
        if accepted:
            for path in (("scope",), ("group",), ("names", "plural"), ("names", "kind")):
                was, now = _at(old["spec"], path), _at(obj["spec"], path)
                if was != now:
                    field = ".".join(("spec", *path))
                    found.append(field_errors.invalid(field, now, "field is immutable"))
        served = {one.get("name") for one in obj["spec"].get("versions") or ()}
        for index, one in enumerate((obj.get("status") or {}).get("storedVersions") or ()):
            if one not in served:
                text = "missing from spec.versions; " + (
                    "must remain in spec.versions until a storage migration ensures no data remains"
                    f" persisted in {one} and removes {one} from status.storedVersions"
                )
                found.append(field_errors.invalid(f"status.storedVersions[{index}]", one, text))
        return found


class CustomRules(LegacyRules):
    """The rules of custom resources."""

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

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """New finalizers whose names others could choose, too."""
        before = old["metadata"].get("finalizers") or () if old is not None else ()
        added = {*(obj["metadata"].get("finalizers") or ())}.difference(before)
        for name in sorted(added - STANDARD_FINALIZERS):
            if "/" not in name:
                context.warnings.append(
                    f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to'
                    " avoid accidental conflicts with other finalizer writers"
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

    def find_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What a Scale shows must be a size."""
        if not self._scaled:
            return []
        path = self.scale_paths[1]
        value = _at(obj, tuple(path.removeprefix(".").split(".")))
        if value is None or (type(value) is int and value >= 0):
            return []
        return [field_errors.invalid(path, value, "should be a non-negative integer")]

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Without a status subresource a change of status counts like any other."""
        ignored = {"metadata", "apiVersion", "kind"} | ({"status"} if self._has_status else set())
        keys = (obj.keys() | old.keys()) - ignored
        return any(obj.get(key) != old.get(key) for key in keys)


def approved(definition: Obj) -> tuple[str, str, str] | None:
    """Whether a definition of a group of Kubernetes' own was approved: "True" or "False", a reason
    and a sentence; None for other groups, which need no approval.
    """
    group = (definition.get("spec") or {}).get("group", "")
    if not f".{group}".endswith((".k8s.io", ".kubernetes.io")):
        return None
    note = (definition["metadata"].get("annotations") or {}).get(APPROVED, "")
    if not note:
        text = f'protected groups must have approval annotation "{APPROVED}", see {POLICY}'
        return "False", "MissingAnnotation", text
    if note.startswith("unapproved"):
        return "False", "UnapprovedAnnotation", f"not approved: {field_errors.render_value(note)}"
    try:
        link = urlsplit(note)
    except ValueError:
        link = urlsplit("")
    if link.scheme and link.netloc:
        return "True", "ApprovedAnnotation", f"approved in {note}"
    text = (
        f'protected groups must have approval annotation "{APPROVED}" with either a URL or a reason'
        f' starting with "unapproved", see {POLICY}'
    )
    return "False", "InvalidAnnotation", text


def _approval_faults(obj: Obj, old: Obj | None) -> Faults:
    now = approved(obj)
    if now is None or now[1] in {"ApprovedAnnotation", "UnapprovedAnnotation"}:
        return []
    before = approved(old) if old is not None else None
    if before is not None and before[1] == now[1]:
        return []
    path = f"metadata.annotations[{APPROVED}]"
    if now[1] == "MissingAnnotation":
        return [field_errors.required(path, now[2])]
    return [field_errors.invalid(path, obj["metadata"]["annotations"][APPROVED], now[2])]


def bad_bundle(definition: Obj) -> bool:
    """Whether the webhook that converts has a bundle that is none."""
    webhook = (definition["spec"].get("conversion") or {}).get("webhook") or {}
    bundle = (webhook.get("clientConfig") or {}).get("caBundle") or ""
    return bool(bundle and bundle_faults(bundle, ""))


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
            found.append(field_errors.duplicate(f"{path}.name", name))
        seen.add(name)
        if not name:
            found.append(field_errors.required(f"{path}.name"))
        else:
            found += [
                field_errors.invalid(f"{path}.name", name, text)
                for text in names.label_1035_errors(name)
            ]
        found += _deprecation_faults(one, f"{path}.deprecationWarning")
        schema = (one.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            text = "schemas are required"
            found.append(field_errors.required(f"{path}.schema.openAPIV3Schema", text))
        for key, faults in (
            ("subresources", _scale_faults),
            ("additionalPrinterColumns", _column_faults),
            ("selectableFields", _selectable_faults),
        ):
            # What is the same in all versions is said once, of the whole.
            if any(one.get(key) != other.get(key) for other in versions or ()):
                found += faults(one, f"{path}.{key}")
            elif not index:
                found += faults(one, f"spec.{key}")
    found += validate_versions(spec)
    storing = [one for one in versions or () if one.get("storage")]
    if len(storing) != 1:
        text = "must have exactly one version marked as storage version"
        found.append(field_errors.invalid("spec.versions", versions, text))
    return found


def _deprecation_faults(version: Obj, path: str) -> Faults:
    text = version.get("deprecationWarning")
    if text is None:
        return []
    if not version.get("deprecated"):
        return [field_errors.invalid(path, text, "can only be set for deprecated versions")]
    found: Faults = []
    if len(text.encode()) > WARNING_LIMIT:
        found.append(
            field_errors.invalid(path, text, f"must be <= {WARNING_LIMIT} characters long")
        )
    if not text:
        found.append(field_errors.invalid(path, text, "must not be an empty string"))
    odd = next((at for at, one in enumerate(text) if not one.isprintable()), None)
    if odd is not None:
        at = len(text[:odd].encode())
        why = (
            "must only contain printable UTF-8 characters; non-printable character found at"
            f" index {at}"
        )
        found.append(field_errors.invalid(path, text, why))
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
            found.append(field_errors.required(at))
        elif not _PATH.match(value):
            found.append(field_errors.invalid(at, value, "must be a simple json path"))
        elif not value.startswith(f"{root}."):
            found.append(field_errors.invalid(at, value, f"should be a json path under {root}"))
    label = scale.get("labelSelectorPath")
    if label:
        at = f"{path}.scale.labelSelectorPath"
        if not _PATH.match(label):
            found.append(field_errors.invalid(at, label, "must be a simple json path"))
        elif not label.startswith((".spec.", ".status.")):
            text = "should be a json path under either .status or .spec"
            found.append(field_errors.invalid(at, label, text))
    return found


def _column_faults(version: Obj, path: str) -> Faults:
    found: Faults = []
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        at = f"{path}[{index}]"
        if not column.get("name"):
            found.append(field_errors.required(f"{at}.name"))
        kind = column.get("type", "")
        if not kind:
            text = "must be one of " + ",".join(COLUMN_TYPES)
            found.append(field_errors.required(f"{at}.type", text))
        elif kind not in COLUMN_TYPES:
            text = "must be one of " + ",".join(COLUMN_TYPES)
            found.append(field_errors.invalid(f"{at}.type", kind, text))
        style = column.get("format")
        if style and style not in FORMATS:
            text = "must be one of " + ",".join(FORMATS)
            found.append(field_errors.invalid(f"{at}.format", style, text))
        if not column.get("jsonPath"):
            found.append(field_errors.required(f"{at}.JSONPath"))
        elif not column["jsonPath"].startswith("."):
            text = "must be a simple json path starting with ."
            found.append(field_errors.invalid(f"{at}.JSONPath", column["jsonPath"], text))
    return found


def _selectable_faults(version: Obj, path: str) -> Faults:
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    found: Faults = []
    for index, one in enumerate(version.get("selectableFields") or ()):
        place = one.get("jsonPath", "")
        below = schema
        for part in place.removeprefix(".").split("."):
            below = (below.get("properties") or {}).get(part) or {}
        if place and not below:
            text = "is an invalid path: does not refer to a valid field"
            found.append(field_errors.invalid(f"{path}[{index}].jsonPath", place, text))
    return found


def _name_faults(known: Obj) -> Faults:
    found: Faults = []
    for key in ("plural", "singular", "kind", "listKind"):
        value = known.get(key, "")
        path = f"spec.names.{key}"
        if not value:
            found.append(field_errors.required(path))
            continue
        found += [
            field_errors.invalid(path, value, text)
            for text in names.label_1035_errors(value.lower())
        ]
        if key in {"plural", "singular"} and value != value.lower():
            found += [
                field_errors.invalid(path, value, text) for text in names.label_1035_errors(value)
            ]
    for key in ("shortNames", "categories"):
        for index, value in enumerate(known.get(key) or ()):
            found += [
                field_errors.invalid(f"spec.names.{key}[{index}]", value, text)
                for text in names.label_1035_errors(value)
            ]
    if known.get("kind") and known.get("kind") == known.get("listKind"):
        text = "kind and listKind may not be the same"
        found.append(field_errors.invalid("spec.names.listKind", known["listKind"], text))
    return found


def _conversion_faults(spec: Obj, check_bundle: bool) -> Faults:
    """What is wrong with how versions become each other, under the names of the server's own type.

    A bundle that is none is let pass until the kind is served: tools write the real one later.
    """
    conversion = spec.get("conversion") or {}
    strategy = conversion.get("strategy", "")
    webhook = conversion.get("webhook") or {}
    config, reviews = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or []
    path = "spec.conversion"
    at, versions = f"{path}.webhookClientConfig", f"{path}.conversionReviewVersions"
    found: Faults = []
    if strategy != "None" and spec.get("preserveUnknownFields"):
        text = "must be None if spec.preserveUnknownFields is true"
        found.append(field_errors.invalid(f"{path}.strategy", strategy, text))
    if not strategy:
        found.append(field_errors.required(f"{path}.strategy"))
    elif strategy not in STRATEGIES:
        found.append(field_errors.unsupported(f"{path}.strategy", strategy, STRATEGIES))
    if strategy == "Webhook":
        if config is None:
            found.append(field_errors.required(at, "required when strategy is set to Webhook"))
        else:
            found += client_faults(config, at, swapped=True)
            if check_bundle and config.get("caBundle"):
                found += bundle_faults(config["caBundle"], f"{at}.caBundle")
        return found + review_faults(reviews, versions, "")
    text = "should not be set when strategy is not set to Webhook"
    if config is not None:
        found.append(field_errors.forbidden(at, text))
    if reviews:
        found.append(field_errors.forbidden(versions, text))
    return found
