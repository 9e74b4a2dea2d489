"""Roles and bindings, and the prevention of privilege escalation.

The writer of a role must hold every permission it grants, or the verb ``escalate`` on it; the
writer of a binding must hold what the role it names grants, or the verb ``bind`` on that role. The
check comes before any other validation of the object, as on a real server, and passes writes that
only unblock garbage collection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from zonewise.api import field_errors
from zonewise.api.resource import Resource
from zonewise.api.values import names
from zonewise.embedded.apiserver.auth.authorization import (
    MASTERS,
    AccessAttributes,
    Authorizer,
    PolicyRule,
)
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import User
from zonewise.embedded.apiserver.strategy.adapters import selector_faults
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext

GROUP = "rbac.authorization.k8s.io"
EVERYTHING = (
    PolicyRule(frozenset("*"), frozenset("*"), frozenset("*")),
    PolicyRule(frozenset("*"), paths=frozenset("*")),
)
SUBJECT_GROUPS = {"Group": GROUP, "ServiceAccount": "", "User": GROUP}


class _Guarded(LegacyRules, ABC):
    """What roles and bindings share."""

    def __init__(self, authorizer: Authorizer, kind: str, plural: str) -> None:
        self._authorizer = authorizer
        self._resource = Resource(GROUP, "v1", kind, plural, not kind.startswith("Cluster"))

    def name_errors(self, name: str) -> list[str]:
        """What is wrong with the name of an object."""
        return names.path_segment_errors(name)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Prevent privilege escalation."""
        if MASTERS not in context.user.groups:
            self._guard(obj, None, context.user)

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """The same, unless only the garbage collector's fields change."""
        if MASTERS not in context.user.groups and not _only_collection(obj, old):
            self._guard(obj, old, context.user)

    @abstractmethod
    def _guard(self, obj: Obj, old: Obj | None, user: User) -> None: ...

    def _holds(self, user: User, verb: str, plural: str, namespace: str, name: str) -> bool:
        act = AccessAttributes(
            verb=verb, group=GROUP, version="v1", resource=plural, namespace=namespace, name=name
        )
        return self._authorizer.authorize(user, act).allowed

    def _refuse(self, obj: Obj, user: User, missing: Sequence[PolicyRule]) -> None:
        if not missing:
            return
        groups = " ".join(f'"{group}"' for group in user.groups)
        lines = sorted(_shown(rule) for rule in missing)
        raise status_errors.forbidden(
            self._resource,
            obj["metadata"].get("name", ""),
            f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not'
            " currently held:\n" + "\n".join(lines),
        )


class RoleRules(_Guarded):
    """The rules of Roles and ClusterRoles."""

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a role."""
        found: Faults = []
        for index, rule in enumerate(obj.get("rules") or ()):
            found += self._rule_faults(rule, f"rules[{index}]")
        aggregation = obj.get("aggregationRule")
        if aggregation is not None:
            found += _aggregation_faults(aggregation)
        return found

    def _rule_faults(self, rule: Obj, path: str) -> Faults:
        found: Faults = []
        if not rule.get("verbs"):
            found.append(
                field_errors.required(f"{path}.verbs", "verbs must contain at least one value")
            )
        if rule.get("nonResourceURLs"):
            at = f"{path}.nonResourceURLs"
            if self._resource.namespaced:
                text = "namespaced rules cannot apply to non-resource URLs"
                found.append(field_errors.invalid(at, rule["nonResourceURLs"], text))
            elif any(rule.get(key) for key in ("apiGroups", "resources", "resourceNames")):
                text = "rules cannot apply to both regular resources and non-resource URLs"
                found.append(field_errors.invalid(at, rule["nonResourceURLs"], text))
            return found
        for key, what in (("apiGroups", "api group"), ("resources", "resource")):
            if not rule.get(key):
                text = f"resource rules must supply at least one {what}"
                found.append(field_errors.required(f"{path}.{key}", text))
        return found

    def _guard(self, obj: Obj, old: Obj | None, user: User) -> None:
        meta = obj["metadata"]
        place = meta.get("namespace", "")
        # A POST names no object, so a permission for one name alone does not count there.
        name = meta.get("name", "") if old else ""
        if self._holds(user, "escalate", self._resource.plural, place, name):
            return
        wanted = [PolicyRule.parse(rule) for rule in obj.get("rules") or ()]
        self._refuse(obj, user, self._authorizer.missing_rules(user, place, wanted))
        gathers = bool(obj.get("aggregationRule")) or bool((old or {}).get("aggregationRule"))
        if gathers and self._authorizer.missing_rules(user, "", EVERYTHING):
            raise status_errors.forbidden(
                self._resource,
                meta.get("name", ""),
                "must have cluster-admin privileges to use the aggregationRule",
            )


class BindingRules(_Guarded):
    """The rules of RoleBindings and ClusterRoleBindings."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A role of no group is one of RBAC's."""
        super().prepare_create(obj, context)
        reference = obj.get("roleRef")
        if reference and not reference.get("apiGroup"):
            reference["apiGroup"] = GROUP

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a binding."""
        found = self._reference_faults(obj.get("roleRef") or {})
        for index, subject in enumerate(obj.get("subjects") or ()):
            found += self._subject_faults(subject, f"subjects[{index}]")
        return found

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """Which role it binds does not change."""
        found: Faults = []
        if obj.get("roleRef") != old.get("roleRef"):
            found.append(
                field_errors.invalid("roleRef", obj.get("roleRef"), "cannot change roleRef")
            )
        return found + self.find(obj, context)

    def _reference_faults(self, reference: Obj) -> Faults:
        found: Faults = []
        group, kind = reference.get("apiGroup", ""), reference.get("kind", "")
        name = reference.get("name", "")
        if group != GROUP:
            found.append(field_errors.unsupported("roleRef.apiGroup", group, (GROUP,)))
        known = ("Role", "ClusterRole") if self._resource.namespaced else ("ClusterRole",)
        if kind not in known:
            found.append(field_errors.unsupported("roleRef.kind", kind, known))
        if not name:
            found.append(field_errors.required("roleRef.name"))
        else:
            found += [
                field_errors.invalid("roleRef.name", name, text)
                for text in names.path_segment_errors(name)
            ]
        return found

    def _subject_faults(self, subject: Obj, path: str) -> Faults:
        found: Faults = []
        kind, name = subject.get("kind", ""), subject.get("name", "")
        if not name:
            found.append(field_errors.required(f"{path}.name"))
        if kind not in SUBJECT_GROUPS:
            return [*found, field_errors.unsupported(f"{path}.kind", kind, SUBJECT_GROUPS)]
        if kind == "ServiceAccount":
            if name:
                found += [
                    field_errors.invalid(f"{path}.name", name, text)
                    for text in names.subdomain_errors(name)
                ]
            if not self._resource.namespaced and not subject.get("namespace"):
                found.append(field_errors.required(f"{path}.namespace"))
        group = SUBJECT_GROUPS[kind]
        if subject.get("apiGroup", "") != group:
            found.append(
                field_errors.unsupported(f"{path}.apiGroup", subject["apiGroup"], (group,))
            )
        return found

    def _guard(self, obj: Obj, old: Obj | None, user: User) -> None:
        place = obj["metadata"].get("namespace", "")
        reference = obj.get("roleRef") or {}
        kind, name = reference.get("kind", ""), reference.get("name", "")
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(kind, "")
        if not plural or self._holds(user, "bind", plural, place, name):
            return  # what binds no role at all is refused by ``validate``
        if not name:
            raise status_errors.bad_request("Name parameter required.")
        if kind == "Role" and not place:
            raise status_errors.bad_request("Namespace parameter required.")
        rules = self._authorizer.rules_of_role(place if kind == "Role" else "", name)
        if rules is None:
            raise status_errors.not_found(self._resource, name)
        self._refuse(obj, user, self._authorizer.missing_rules(user, place, rules))


def _only_collection(obj: Obj, old: Obj) -> bool:
    def rest(one: Obj) -> Obj:
        skipped = ("finalizers", "managedFields", "ownerReferences")
        meta = {key: value for key, value in one["metadata"].items() if key not in skipped}
        return one | {"metadata": meta}

    return rest(obj) == rest(old)


def _aggregation_faults(aggregation: Obj) -> Faults:
    path = "aggregationRule.clusterRoleSelectors"
    selectors = aggregation.get("clusterRoleSelectors") or ()
    if not selectors:
        return [field_errors.required(path, "at least one clusterRoleSelector required")]
    found: Faults = []
    for index, selector in enumerate(selectors):
        mine = selector_faults(selector, f"{path}[{index}]")
        if mine:
            mine.append(
                field_errors.invalid(f"{path}[{index}]", selector, "invalid label selector.")
            )
        found += mine
    return found


def _shown(rule: PolicyRule) -> str:
    parts = []
    for title, values in (
        ("APIGroups", rule.groups),
        ("Resources", rule.resources),
        ("ResourceNames", rule.names),
        ("NonResourceURLs", rule.paths),
        ("Verbs", rule.verbs),
    ):
        if values:
            parts.append(f"{title}:[" + " ".join(f'"{one}"' for one in sorted(values)) + "]")
    return "{" + ", ".join(parts) + "}"
