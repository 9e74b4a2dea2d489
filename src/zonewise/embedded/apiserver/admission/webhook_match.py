"""Which webhooks a write concerns: pure, compiled once per configuration.

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
from zonewise.embedded.apiserver.registry import Served

if TYPE_CHECKING:
    from zonewise.embedded.machinery.cel.match_conditions import MatchConditions

Obj = dict[str, Any]

GROUP = "admissionregistration.k8s.io"
MUTATING = f"{GROUP}/mutatingwebhookconfigurations"
VALIDATING = f"{GROUP}/validatingwebhookconfigurations"
EXEMPT = frozenset(
    {MUTATING, VALIDATING}
    | {
        f"{GROUP}/{manner}admission{what}"
        for manner in ("mutating", "validating")
        for what in ("policies", "policybindings")
    }
)
"""Kinds that no webhook is called for: one that refused them could never be removed."""

DEFAULT_SECONDS = 10
_MUTATING = msgspec.json.Decoder(MutatingWebhookConfiguration)
_VALIDATING = msgspec.json.Decoder(ValidatingWebhookConfiguration)


@dataclass(frozen=True, eq=False)
class Hook:
    """One webhook, ready to be called."""

    configuration: str
    number: int
    spec: ValidatingWebhook
    namespaces: Selector
    objects: Selector

    @property
    def name(self) -> str:
        """What its author calls it; refusals name it."""
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
    def dry_runs(self) -> bool:
        """Whether it may be called for a dry run."""
        return self.spec.side_effects in {"None", "NoneOnDryRun"}

    @property
    def again(self) -> bool:
        """Whether it is called again for changes of later webhooks."""
        spec = self.spec
        return isinstance(spec, MutatingWebhook) and spec.reinvocation_policy == "IfNeeded"

    @cached_property
    def conditions(self) -> MatchConditions:
        """Its match conditions."""
        from zonewise.embedded.machinery.cel.match_conditions import conditions_of

        return conditions_of([msgspec.to_builtins(one) for one in self.spec.match_conditions])

    def wants(
        self,
        *,
        namespace_labels: Mapping[str, str] | None,
        obj: Obj | None,
        old: Obj | None,
    ) -> bool:
        """Whether its selectors select the write; None as labels means "in no namespace"."""
        if namespace_labels is not None and not self.namespaces.matches(namespace_labels):
            return False
        if not self.objects.requirements:
            return True
        return any(one is not None and self.objects.matches(_labels(one)) for one in (obj, old))


def _labels(obj: Obj) -> Mapping[str, str]:
    found: Mapping[str, str] = obj.get("metadata", {}).get("labels") or {}
    return found


def compiled(raws: Iterable[bytes], *, mutating: bool) -> tuple[Hook, ...]:
    """The webhooks of stored configurations, in the order in which they are called."""
    decode = _MUTATING.decode if mutating else _VALIDATING.decode
    read: list[MutatingWebhookConfiguration | ValidatingWebhookConfiguration]
    read = [decode(raw) for raw in raws]
    found: list[Hook] = []
    for configuration in sorted(read, key=lambda one: one.metadata.name):
        seen: Counter[str] = Counter()
        for spec in configuration.webhooks:
            found.append(
                Hook(
                    configuration=configuration.metadata.name,
                    number=seen[spec.name],
                    spec=spec,
                    namespaces=_selector(spec.namespace_selector),
                    objects=_selector(spec.object_selector),
                )
            )
            seen[spec.name] += 1
    return tuple(found)


def _selector(wanted: Any) -> Selector:
    return Selector() if wanted is None else selector.from_object(wanted)


def viewed(
    hook: Hook,
    served: Served,
    operation: str,
    subresource: str,
    equivalents: Iterable[Served],
) -> Served | None:
    """The kind in which a webhook gets writes of ``served``, None if it does not.

    The kind itself comes first; then, if the webhook takes equivalents, its earlier rules before
    its later ones.
    """
    for rule in hook.spec.rules:
        if matches(rule, served, operation, subresource):
            return served
    if hook.spec.match_policy == "Exact":
        return None
    others = [one for one in equivalents if one is not served]
    for rule in hook.spec.rules:
        for other in others:
            if matches(rule, other, operation, subresource):
                return other
    return None


def matches(rule: RuleWithOperations, served: Served, operation: str, subresource: str) -> bool:
    """Whether a rule matches this."""
    resource = served.kind.resource
    return (
        _among(rule.operations, operation)
        and _among(rule.api_groups, resource.group)
        and _among(rule.api_versions, resource.version)
        and rule.scope in {None, "", "*", "Namespaced" if resource.namespaced else "Cluster"}
        and any(_names(one, resource.plural, subresource) for one in rule.resources)
    )


def _among(wanted: tuple[str, ...], value: str) -> bool:
    return "*" in wanted or value in wanted


def _names(pattern: str, plural: str, subresource: str) -> bool:
    """``pods`` is the pods alone, ``pods/*`` also all below them; ``*`` is no subresource."""
    resource, _, below = pattern.partition("/")
    return resource in {"*", plural} and below in {"*", subresource}
