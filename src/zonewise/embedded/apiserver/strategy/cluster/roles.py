"""Roles and bindings, and the prevention of privilege escalation.

The writer of a role must hold every permission it grants, or the verb ``escalate`` on it; the
writer of a binding must hold what the role it names grants, or the verb ``bind`` on that role. The
check comes before any other validation of the object, as on a real server, and passes writes that
only unblock garbage collection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from zonewise.api.field_cursor import Field
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
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.selectors import validate_label_selector

GROUP = "rbac.authorization.k8s.io"
EVERYTHING = (
    PolicyRule(frozenset("*"), frozenset("*"), frozenset("*")),
    PolicyRule(frozenset("*"), paths=frozenset("*")),
)
SUBJECT_GROUPS = {"Group": GROUP, "ServiceAccount": "", "User": GROUP}


class _Guarded(Rules, ABC):
    """What roles and bindings share."""

    def __init__(self, authorizer: Authorizer, kind: str, plural: str) -> None:
        self._authorizer = authorizer
        self._resource = Resource(GROUP, "v1", kind, plural, not kind.startswith("Cluster"))

    def name_errors(self, name: str) -> list[str]:
        """Almost every text is a valid name."""
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

    def _has_verb(self, user: User, verb: str, plural: str, namespace: str, name: str) -> bool:
        act = AccessAttributes(
            verb=verb, group=GROUP, version="v1", resource=plural, namespace=namespace, name=name
        )
        return self._authorizer.authorize(user, act).allowed

    def _refuse(self, obj: Obj, user: User, missing: Sequence[PolicyRule]) -> None:
        if not missing:
            return
        groups = " ".join(f'"{group}"' for group in user.groups)
        lines = sorted(_render_rule(rule) for rule in missing)
        raise status_errors.forbidden(
            self._resource,
            obj["metadata"].get("name", ""),
            f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not'
            " currently held:\n" + "\n".join(lines),
        )


class RoleRules(_Guarded):
    """The rules of Roles and ClusterRoles."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        for rule in obj["rules"].each():
            self._validate_policy_rule(rule)
        if obj["aggregationRule"].value is not None:
            _validate_aggregation(obj["aggregationRule"]["clusterRoleSelectors"])

    def _validate_policy_rule(self, rule: Field) -> None:
        rule["verbs"].required("verbs must contain at least one value")
        urls = rule["nonResourceURLs"]
        if not urls.value:
            rule["apiGroups"].required("resource rules must supply at least one api group")
            rule["resources"].required("resource rules must supply at least one resource")
        elif self._resource.namespaced:
            urls.invalid("namespaced rules cannot apply to non-resource URLs")
        elif any(rule[key].value for key in ("apiGroups", "resources", "resourceNames")):
            urls.invalid("rules cannot apply to both regular resources and non-resource URLs")

    def _guard(self, obj: Obj, old: Obj | None, user: User) -> None:
        meta = obj["metadata"]
        namespace = meta.get("namespace", "")
        # A POST names no object, so a permission for one name alone does not count there.
        name = meta.get("name", "") if old else ""
        if self._has_verb(user, "escalate", self._resource.plural, namespace, name):
            return
        rules = [PolicyRule.parse(rule) for rule in obj.get("rules") or ()]
        self._refuse(obj, user, self._authorizer.missing_rules(user, namespace, rules))
        aggregates = obj.get("aggregationRule") or (old or {}).get("aggregationRule")
        if aggregates and self._authorizer.missing_rules(user, "", EVERYTHING):
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

    def validate(self, obj: Field, context: StrategyContext) -> None:
        reference, namespaced = obj["roleRef"], self._resource.namespaced
        reference.get("apiGroup", "").enum((GROUP,))
        reference.get("kind", "").enum(("Role", "ClusterRole") if namespaced else ("ClusterRole",))
        reference["name"].required().path_segment()
        for subject in obj["subjects"].each():
            _validate_subject(subject, namespaced=namespaced)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """Which role it binds does not change."""
        if obj["roleRef"].value != old.get("roleRef"):
            obj["roleRef"].invalid("cannot change roleRef")
        self.validate(obj, context)

    def _guard(self, obj: Obj, old: Obj | None, user: User) -> None:
        namespace = obj["metadata"].get("namespace", "")
        reference = obj.get("roleRef") or {}
        kind, name = reference.get("kind", ""), reference.get("name", "")
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(kind, "")
        if not plural or self._has_verb(user, "bind", plural, namespace, name):
            return  # what binds no role at all is refused by ``validate``
        if not name:
            raise status_errors.bad_request("Name parameter required.")
        if kind == "Role" and not namespace:
            raise status_errors.bad_request("Namespace parameter required.")
        rules = self._authorizer.rules_of_role(namespace if kind == "Role" else "", name)
        if rules is None:
            raise status_errors.not_found(self._resource, name)
        self._refuse(obj, user, self._authorizer.missing_rules(user, namespace, rules))


def _validate_subject(subject: Field, *, namespaced: bool) -> None:
    kind, name = subject.get("kind", ""), subject["name"].required()
    if not kind.enum(SUBJECT_GROUPS):
        return
    if kind.value == "ServiceAccount":
        name.dns_subdomain()
        if not namespaced:
            subject["namespace"].required()
    subject.get("apiGroup", "").enum((SUBJECT_GROUPS[kind.value],))


def _only_collection(obj: Obj, old: Obj) -> bool:
    def _comparable(role: Obj) -> Obj:
        skipped = ("finalizers", "managedFields", "ownerReferences")
        meta = {key: value for key, value in role["metadata"].items() if key not in skipped}
        return role | {"metadata": meta}

    return _comparable(obj) == _comparable(old)


def _validate_aggregation(selectors: Field) -> None:
    selectors.required("at least one clusterRoleSelector required")
    for selector in selectors.each():
        if not selector.is_valid(validate_label_selector):
            selector.invalid("invalid label selector.")


def _render_rule(rule: PolicyRule) -> str:
    parts = {
        "APIGroups": rule.groups,
        "Resources": rule.resources,
        "ResourceNames": rule.names,
        "NonResourceURLs": rule.paths,
        "Verbs": rule.verbs,
    }
    return (
        "{"
        + ", ".join(
            f"{title}:[" + " ".join(f'"{value}"' for value in sorted(values)) + "]"
            for title, values in parts.items()
            if values
        )
        + "}"
    )
