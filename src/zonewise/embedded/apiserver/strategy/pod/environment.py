"""The environment of a container: variables, and where their values come from."""

from __future__ import annotations

import re

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.pod.references import (
    FIELDS,
    validate_object_field_selector,
    validate_path_no_backsteps,
    validate_resource_field_selector,
)

NOT_IN_ENV = ("metadata.annotations", "metadata.labels", "spec.restartPolicy")
ENV_FIELDS = FIELDS.difference((*NOT_IN_ENV, "spec.schedulerName", "status.phase"))
SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
TOO_MANY_SOURCES = "may not have more than one field specified at a time"
_ENV_NAME = re.compile(r"[ -<>-~]+\Z")
_ENV_NAME_RULE = "environment variable names must be printable ASCII characters other than '='"


def validate_env(variables: Field, pod_spec: Obj) -> None:
    """The variables of a container."""
    for variable in variables.each():
        variable["name"].required().matches(_ENV_NAME, _ENV_NAME_RULE)
        if variable.value.get("valueFrom") is not None:
            _validate_env_var_source(variable, pod_spec)


def validate_env_from(sources: Field) -> None:
    """The sources of whole sets of variables."""
    for source in sources.each():
        source["prefix"].optional().matches(_ENV_NAME, _ENV_NAME_RULE)
        chosen = [key for key in ("configMapRef", "secretRef") if source.value.get(key) is not None]
        for key in chosen:
            name = source[key]["name"]
            if name.required():
                # The name is judged as the start of a longer one, which may end with a dash.
                judged = f"{name.value[:-1]}a" if name.value.endswith("-") else name.value
                name.without_errors(names.subdomain_errors(judged))
        if not chosen:
            sources.invalid("must specify one of: `configMapRef` or `secretRef`", "")
        elif len(chosen) > 1:
            sources.invalid(TOO_MANY_SOURCES, "")


def _validate_env_var_source(variable: Field, pod_spec: Obj) -> None:
    source = variable["valueFrom"]
    chosen = [key for key in SOURCES if source.value.get(key) is not None]
    for key in chosen:
        reference = source[key]
        match key:
            case "fieldRef":
                validate_object_field_selector(reference, ENV_FIELDS)
            case "resourceFieldRef":
                validate_resource_field_selector(reference)
            case "fileKeyRef":
                _validate_file_key_selector(reference, pod_spec)
            case _:
                reference.get("name", "").dns_subdomain()
                reference["key"].required().name(names.config_map_key_errors)
    if not chosen:
        source.invalid(
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`,"
            " `secretKeyRef` or `fileKeyRef`",
            "",
        )
    elif variable.value.get("value"):
        source.invalid("may not be specified when `value` is not empty", "")
    elif len(chosen) > 1:
        source.invalid(TOO_MANY_SOURCES, "")


def _validate_file_key_selector(reference: Field, pod_spec: Obj) -> None:
    reference["key"].required().matches(_ENV_NAME, _ENV_NAME_RULE)
    validate_path_no_backsteps(reference["path"].required())
    volume_name = reference.get("volumeName", "")
    volume_name.required().dns_label()
    volume = next(
        (
            volume
            for volume in pod_spec.get("volumes") or ()
            if volume.get("name") == volume_name.value
        ),
        None,
    )
    if volume is None:
        volume_name.not_found()
    elif volume.get("emptyDir") is None:
        volume_name.invalid("referenced volume must be of type emptyDir")
