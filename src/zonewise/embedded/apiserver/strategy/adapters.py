"""The rules that are cursors already, for those that are not yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zonewise.api.field_cursor import Field, FieldErrors
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.metadata import validate_labels
from zonewise.embedded.apiserver.strategy.pod.references import validate_path_no_backsteps
from zonewise.embedded.apiserver.strategy.pod.resources import validate_container_resource_name
from zonewise.embedded.apiserver.strategy.pod.spec import validate_pod_template_spec
from zonewise.embedded.apiserver.strategy.pod.volumes import validate_claim_spec
from zonewise.embedded.apiserver.strategy.selectors import (
    validate_label_selector,
    validate_node_selector,
    validate_node_selector_term,
)


def adapt(validate: Callable[[Field], None]) -> Callable[[Any, str], FieldErrors]:
    """A rule that returns its errors."""

    def find_errors(value: Any, path: str) -> FieldErrors:
        errors: FieldErrors = []
        validate(Field(value, errors, path))
        return errors

    return find_errors


selector_faults = adapt(validate_label_selector)
node_selector_faults = adapt(validate_node_selector)
term_faults = adapt(validate_node_selector_term)
claim_spec_faults = adapt(validate_claim_spec)
no_backsteps = adapt(validate_path_no_backsteps)
name_faults = adapt(validate_container_resource_name)
template_faults = adapt(validate_pod_template_spec)


def label_faults(path: str, labels: Obj) -> FieldErrors:
    """A map of labels."""
    return adapt(validate_labels)(labels, path)
