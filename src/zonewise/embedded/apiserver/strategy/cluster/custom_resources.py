"""CustomResourceDefinitions, and the rules of the resources they define."""

from __future__ import annotations

import re
from functools import partial
from urllib.parse import urlsplit

from zonewise.api import field_errors
from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext, read_path
from zonewise.embedded.apiserver.strategy.cluster.webhooks import (
    validate_ca_bundle,
    validate_client_config,
    validate_review_versions,
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


class DefinitionRules(Rules):
    """The rules of CustomResourceDefinitions."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new definition is known, but its names are not accepted yet."""
        versions = (obj.get("spec") or {}).get("versions") or ()
        stored = [version.get("name", "") for version in versions if version.get("storage")]
        obj["status"] = {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": stored or None,
        }

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A new storage version joins those that may be in the store."""
        versions = (obj.get("spec") or {}).get("versions") or ()
        stored = list((obj.get("status") or {}).get("storedVersions") or ())
        for version in versions:
            if version.get("storage") and version.get("name") not in stored:
                stored.append(version["name"])
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

    def validate(self, obj: Field, context: StrategyContext) -> None:
        _validate_definition(obj, check_bundle=False)
        _validate_approval(obj, None)
        preserving = obj["spec"]["preserveUnknownFields"]
        if preserving.value:
            preserving.invalid(
                "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in"
                " spec.versions[*].schema instead"
            )

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """Names that were accepted stay."""
        is_established = _condition(old, "Established") == "True"
        _validate_definition(obj, check_bundle=is_established and not has_invalid_bundle(old))
        _validate_approval(obj, old)
        spec = obj["spec"]
        if is_established:
            old_names = old["spec"].get("names") or {}
            spec["scope"].immutable(old["spec"].get("scope"))
            spec["group"].immutable(old["spec"].get("group"))
            spec["names"]["plural"].immutable(old_names.get("plural"))
            spec["names"]["kind"].immutable(old_names.get("kind"))
        versions = {version.get("name") for version in spec["versions"].value or ()}
        for stored in obj["status"]["storedVersions"].each():
            if stored.value not in versions:
                stored.invalid(
                    "missing from spec.versions; must remain in spec.versions until a storage"
                    f" migration ensures no data remains persisted in {stored.value} and removes"
                    f" {stored.value} from status.storedVersions"
                )


class CustomRules(Rules):
    """The rules of custom resources."""

    generation = True
    blind_update = False
    answers_deleted = False

    def __init__(self, *, has_status: bool, scale: Obj | None, selectable: tuple[str, ...]) -> None:
        self._has_status = has_status
        self._is_scaled = bool(scale)
        self.selectable = frozenset(path.removeprefix(".") for path in selectable)
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

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What a Scale shows must be a size."""
        path = self.scale_paths[1]
        count = read_path(obj.value, path.removeprefix("."))
        if self._is_scaled and count is not None and not (type(count) is int and count >= 0):
            obj.child(path, count).invalid("should be a non-negative integer")

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Without a status subresource a change of status counts like any other."""
        ignored = {"metadata", "apiVersion", "kind"} | ({"status"} if self._has_status else set())
        keys = (obj.keys() | old.keys()) - ignored
        return any(obj.get(key) != old.get(key) for key in keys)


def find_approval(definition: Obj) -> tuple[str, str, str] | None:
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


def _validate_approval(obj: Field, old: Obj | None) -> None:
    approval = find_approval(obj.value)
    if approval is None or approval[1] in {"ApprovedAnnotation", "UnapprovedAnnotation"}:
        return
    _, reason, detail = approval
    old_approval = find_approval(old) if old is not None else None
    if old_approval is not None and old_approval[1] == reason:
        return
    annotation = obj["metadata"]["annotations"].entry(APPROVED)
    if reason == "MissingAnnotation":
        annotation.missing(detail)
    else:
        annotation.invalid(detail)


def has_invalid_bundle(definition: Obj) -> bool:
    """Whether the certificates for the conversion webhook are not valid."""
    bundle = Field(definition, [])["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]
    return bool(bundle.value) and not bundle.is_valid(validate_ca_bundle)


def _condition(obj: Obj, kind: str) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((value["status"] for value in conditions if value.get("type") == kind), "")


def _validate_definition(obj: Field, *, check_bundle: bool) -> None:
    spec, name = obj["spec"], obj["metadata"]["name"]
    group, scope = spec["group"], spec["scope"]
    plural = spec["names"].get("plural", "").value
    if name.value and name.value != f"{plural}.{group.value or ''}":
        name.invalid('must be spec.names.plural+"."+spec.group')
    if group.required():
        group.dns_subdomain()
        if "." not in group.value:
            group.invalid("should be a domain with at least one dot")
    scope.required().enum(("Cluster", "Namespaced"))
    versions = spec["versions"]
    for index in range(len(versions.value or ())):
        _validate_version(spec, index)
    obj.errors.extend(validate_versions(spec.value or {}))
    if sum(bool(version.get("storage")) for version in versions.value or ()) != 1:
        versions.invalid("must have exactly one version marked as storage version")
    _validate_names(spec["names"])
    _validate_conversion(spec, check_bundle=check_bundle)
    stored = obj["status"]["storedVersions"]
    if not stored.value:
        stored.invalid("must have at least one stored version")


def _validate_version(spec: Field, index: int) -> None:
    versions = spec["versions"]
    version, name = versions.item(index), versions.item(index).get("name", "")
    if name.value in (other.get("name", "") for other in versions.value[:index]):
        name.duplicate()
    name.required().dns_1035_label()
    _validate_deprecation(version)
    schema = version["schema"]["openAPIV3Schema"]
    schema.present("schemas are required")
    for key, validate in (
        ("subresources", _validate_subresources),
        ("additionalPrinterColumns", _validate_columns),
        ("selectableFields", partial(_validate_selectable_fields, schema=schema.value or {})),
    ):
        # What is the same in all versions is reported once, of the whole.
        part = version[key]
        if any(part.value != other.get(key) for other in versions.value):
            validate(part)
        elif index == 0:
            validate(spec.child(key, part.value))


def _validate_deprecation(version: Field) -> None:
    warning = version["deprecationWarning"]
    text = warning.value
    if text is None:
        return
    if not version["deprecated"].value:
        warning.invalid("can only be set for deprecated versions")
        return
    if len(text.encode()) > WARNING_LIMIT:
        warning.invalid(f"must be <= {WARNING_LIMIT} characters long")
    if not text:
        warning.invalid("must not be an empty string")
    for index, letter in enumerate(text):
        if not letter.isprintable():
            warning.invalid(
                "must only contain printable UTF-8 characters; non-printable character found at"
                f" index {len(text[:index].encode())}"
            )
            break


def _validate_subresources(subresources: Field) -> None:
    scale = subresources["scale"]
    if scale.value is None:
        return
    for key, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        path = scale[key].required().matches(_PATH, "must be a simple json path")
        if path.value and not path.value.startswith(f"{root}."):
            path.invalid(f"should be a json path under {root}")
    label = scale["labelSelectorPath"].optional().matches(_PATH, "must be a simple json path")
    if label.value and not label.value.startswith((".spec.", ".status.")):
        label.invalid("should be a json path under either .status or .spec")


def _validate_columns(columns: Field) -> None:
    for column in columns.each():
        column["name"].required()
        for key, known in (("type", COLUMN_TYPES), ("format", FORMATS)):
            field, detail = column[key], "must be one of " + ",".join(known)
            if key == "type":
                field = field.required(detail)
            if field.value and field.value not in known:
                field.invalid(detail)
        path = column["jsonPath"].named("JSONPath")
        if path.required() and not path.value.startswith("."):
            path.invalid("must be a simple json path starting with .")


def _validate_selectable_fields(fields: Field, schema: Obj) -> None:
    for field in fields.each():
        path, props = field["jsonPath"].optional(), schema
        for name in (path.value or "").removeprefix(".").split("."):
            props = (props.get("properties") or {}).get(name) or {}
        if path and not props:
            path.invalid("is an invalid path: does not refer to a valid field")


def _validate_names(known: Field) -> None:
    for key in ("plural", "singular", "kind", "listKind"):
        name = known[key]
        if name.required():
            lower = name.value.lower()
            name.without_errors(names.label_1035_errors(lower))
            if key in {"plural", "singular"} and name.value != lower:
                name.dns_1035_label()
    for key in ("shortNames", "categories"):
        for name in known[key].each():
            name.dns_1035_label()
    if known["kind"].value and known["kind"].value == known["listKind"].value:
        known["listKind"].invalid("kind and listKind may not be the same")


def _validate_conversion(spec: Field, *, check_bundle: bool) -> None:
    """How versions become each other, under the names of the server's own type.

    Invalid certificates are accepted until the kind is served: tools write the real ones later.
    """
    conversion = spec["conversion"]
    strategy, webhook = conversion.get("strategy", ""), conversion["webhook"]
    config = conversion.child("webhookClientConfig", webhook["clientConfig"].value)
    reviews = conversion.child(
        "conversionReviewVersions", webhook["conversionReviewVersions"].value
    )
    if strategy.value != "None" and spec["preserveUnknownFields"].value:
        strategy.invalid("must be None if spec.preserveUnknownFields is true")
    strategy.required().enum(STRATEGIES)
    if strategy.value != "Webhook":
        config.forbid_set("should not be set when strategy is not set to Webhook")
        reviews.forbid_filled("should not be set when strategy is not set to Webhook")
        return
    if config.present("required when strategy is set to Webhook"):
        validate_client_config(config, swapped=True)
        if check_bundle and config["caBundle"].value:
            validate_ca_bundle(config["caBundle"])
    validate_review_versions(reviews)
