"""Which webhooks match a write: pure functions, compiled once per configuration.

What depends only on the kind, the operation and the subresource (rules, scope, equivalent versions)
is decided once and cached by the caller. What depends on the object and its namespace (selectors,
conditions) is evaluated on every write.

Webhooks run in the order of their configurations' names, then in the order of their list. Two of
one name in one configuration are distinguished by a counter, so that calling one again never calls
the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from zonewise.api.objects.admissionregistration import (
    MutatingWebhook,
    MutatingWebhookConfiguration,
    RuleWithOperations,
    ValidatingWebhook,
    ValidatingWebhookConfiguration,
)
from zonewise.api.values import selector
from zonewise.api.values.selector import Selector
from zonewise.embedded.apiserver.registry import ServedKind

if TYPE_CHECKING:
    from zonewise.embedded.machinery.cel.match_conditions import MatchConditions

Obj = dict[str, Any]

GROUP = "admissionregistration.k8s.io"
MUTATING = f"{GROUP}/mutatingwebhookconfigurations"
VALIDATING = f"{GROUP}/validatingwebhookconfigurations"
EXEMPT_KINDS = frozenset(
    {MUTATING, VALIDATING}
    | {
        f"{GROUP}/{manner}admission{what}"
        for manner in ("mutating", "validating")
        for what in ("policies", "policybindings")
    }
)
"""Kinds that no webhook is called for: a webhook that refuses them could never be removed."""

DEFAULT_SECONDS = 10
_MUTATING = msgspec.json.Decoder(MutatingWebhookConfiguration)
_VALIDATING = msgspec.json.Decoder(ValidatingWebhookConfiguration)


@dataclass(frozen=True, eq=False)
class Hook:
    """One compiled webhook."""

    configuration: str
    number: int
    spec: ValidatingWebhook
    namespaces: Selector
    objects: Selector

    @property
    def name(self) -> str:
        """Its name, which is in refusals."""
        return self.spec.name

    @property
    def ignores_failure(self) -> bool:
        """Whether a write continues when the webhook cannot be called."""
        return self.spec.failure_policy == "Ignore"

    @property
    def seconds(self) -> int:
        """How long it may take to answer."""
        return self.spec.timeout_seconds or DEFAULT_SECONDS

    @property
    def supports_dry_run(self) -> bool:
        """Whether it may be called for a dry run."""
        return self.spec.side_effects in {"None", "NoneOnDryRun"}

    @property
    def is_reinvoked(self) -> bool:
        """Whether it is called again for changes of later webhooks."""
        spec = self.spec
        return isinstance(spec, MutatingWebhook) and spec.reinvocation_policy == "IfNeeded"

    @cached_property
    def conditions(self) -> MatchConditions:
        """Its match conditions."""
        from zonewise.embedded.machinery.cel.match_conditions import compile_conditions

        return compile_conditions(
            [msgspec.to_builtins(condition) for condition in self.spec.match_conditions]
        )

    def selects(
        self, *, namespace_labels: Mapping[str, str] | None, obj: Obj | None, old: Obj | None
    ) -> bool:
        """Whether its selectors select the write; labels are None if it is in no namespace."""
        if namespace_labels is not None and not self.namespaces.matches(namespace_labels):
            return False
        if not self.objects.requirements:
            return True
        return any(
            candidate is not None and self.objects.matches(_labels_of(candidate))
            for candidate in (obj, old)
        )


def _labels_of(obj: Obj) -> Mapping[str, str]:
    labels: Mapping[str, str] = obj.get("metadata", {}).get("labels") or {}
    return labels


def compile_webhooks(raws: Iterable[bytes], *, mutating: bool) -> tuple[Hook, ...]:
    """The webhooks of stored configurations, in the order in which they are called."""
    decode = _MUTATING.decode if mutating else _VALIDATING.decode
    configurations: list[MutatingWebhookConfiguration | ValidatingWebhookConfiguration]
    configurations = [decode(raw) for raw in raws]
    hooks: list[Hook] = []
    for configuration in sorted(
        configurations, key=lambda configuration: configuration.metadata.name
    ):
        counts: Counter[str] = Counter()
        for spec in configuration.webhooks:
            hooks.append(
                Hook(
                    configuration=configuration.metadata.name,
                    number=counts[spec.name],
                    spec=spec,
                    namespaces=_compile_selector(spec.namespace_selector),
                    objects=_compile_selector(spec.object_selector),
                )
            )
            counts[spec.name] += 1
    return tuple(hooks)


def _compile_selector(label_selector: Any) -> Selector:
    return Selector() if label_selector is None else selector.from_object(label_selector)


def matching_kind(
    hook: Hook,
    served: ServedKind,
    operation: str,
    subresource: str,
    equivalents: Iterable[ServedKind],
) -> ServedKind | None:
    """The kind in which a webhook gets writes of ``served``, None if it does not match.

    The kind itself comes first; then, if the webhook matches equivalents, in the order of its
    rules.
    """
    for rule in hook.spec.rules:
        if rule_matches(rule, served, operation, subresource):
            return served
    if hook.spec.match_policy == "Exact":
        return None
    other_kinds = [served_kind for served_kind in equivalents if served_kind is not served]
    for rule in hook.spec.rules:
        for other in other_kinds:
            if rule_matches(rule, other, operation, subresource):
                return other
    return None


def rule_matches(
    rule: RuleWithOperations, served: ServedKind, operation: str, subresource: str
) -> bool:
    """Whether a rule matches a kind, operation and subresource."""
    resource = served.kind.resource
    return (
        _includes(rule.operations, operation)
        and _includes(rule.api_groups, resource.group)
        and _includes(rule.api_versions, resource.version)
        and rule.scope in {None, "", "*", "Namespaced" if resource.namespaced else "Cluster"}
        and any(
            _matches_resource(pattern, resource.plural, subresource) for pattern in rule.resources
        )
    )


def _includes(patterns: tuple[str, ...], value: str) -> bool:
    return "*" in patterns or value in patterns


def _matches_resource(pattern: str, plural: str, subresource: str) -> bool:
    """``pods`` matches only pods, ``pods/*`` also subresources; ``*`` matches no subresource."""
    resource, _, subresource_pattern = pattern.partition("/")
    return resource in {"*", plural} and subresource_pattern in {"*", subresource}
