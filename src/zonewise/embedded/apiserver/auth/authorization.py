"""Role-based access control, evaluated from the stored roles and bindings.

Roles and bindings are compiled when they change, not at each request: a binding is indexed by each
of its subjects, so a decision reads only the bindings of one user and its groups. Decisions are
cached until the next change. Members of ``system:masters`` are allowed before any role is read, so
a broken role never locks the owner out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from zonewise.embedded.apiserver.request.call import User

Obj = dict[str, Any]

MASTERS = "system:masters"
CACHE_SIZE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessAttributes:
    """The attributes of a request; without a resource ``path`` is set and the rest empty."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def qualified_resource(self) -> str:
        """Resource and subresource as rules name them."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """Whether a request is allowed, and by which binding."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule of a role."""

    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, rule: Obj) -> PolicyRule:
        """The rule as a role has it."""
        return cls(
            frozenset(rule.get("verbs") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("resources") or ()),
            frozenset(rule.get("resourceNames") or ()),
            frozenset(rule.get("nonResourceURLs") or ()),
        )

    def allows(self, access: AccessAttributes) -> bool:
        """Whether this rule alone allows the request."""
        if "*" not in self.verbs and access.verb not in self.verbs:
            return False
        if access.path:
            return any(_path_matches(pattern, access.path) for pattern in self.paths)
        return (
            ("*" in self.groups or access.group in self.groups)
            and self._matches_resource(access)
            and (not self.names or access.name in self.names)
        )

    def _matches_resource(self, access: AccessAttributes) -> bool:
        if "*" in self.resources or access.qualified_resource in self.resources:
            return True
        return bool(access.subresource) and f"*/{access.subresource}" in self.resources

    def break_down(self) -> Iterator[PolicyRule]:
        """The same rule as rules of one verb on one resource or path each."""
        for verb in self.verbs:
            single_verb = frozenset({verb})
            for path in self.paths:
                yield PolicyRule(single_verb, paths=frozenset({path}))
            for group in self.groups:
                for resource in self.resources:
                    for name in self.names or {""}:
                        yield PolicyRule(
                            single_verb,
                            frozenset({group}),
                            frozenset({resource}),
                            frozenset({name}) if name else frozenset(),
                        )

    def covers(self, part: PolicyRule) -> bool:
        """Whether this rule allows all that a broken down ``part`` allows."""
        if "*" not in self.verbs and not part.verbs <= self.verbs:
            return False
        if part.paths:
            return all(
                any(pattern == path or _path_matches(pattern, path) for pattern in self.paths)
                for path in part.paths
            )
        if "*" not in self.groups and not part.groups <= self.groups:
            return False
        if self.names and (not part.names or not part.names <= self.names):
            return False
        return all(self._covers_resource(resource) for resource in part.resources)

    def _covers_resource(self, resource: str) -> bool:
        if "*" in self.resources or resource in self.resources:
            return True
        _, slash, subresource = resource.partition("/")
        return bool(slash) and f"*/{subresource}" in self.resources


@dataclass(frozen=True, slots=True)
class _Binding:
    kind: str  # ClusterRoleBinding or RoleBinding
    namespace: str
    name: str
    role_kind: str
    role_name: str
    subjects: frozenset[tuple[str, str]]


class Authorizer:
    """The compiled roles and bindings."""

    def __init__(self) -> None:
        self._roles: dict[
            tuple[str, str], tuple[PolicyRule, ...]
        ] = {}  # namespace ("" = cluster), name
        self._bindings: dict[tuple[str, str], _Binding] = {}
        self._by_subject: dict[tuple[str, str], dict[tuple[str, str], _Binding]] = {}
        self._cached_verdicts: dict[tuple[User, AccessAttributes], AccessVerdict] = {}

    def put_role(self, namespace: str, name: str, obj: Obj | None) -> None:
        """Set a Role (without a namespace: a ClusterRole); None if it was deleted."""
        self._cached_verdicts.clear()
        if obj is None:
            self._roles.pop((namespace, name), None)
        else:
            rules = tuple(PolicyRule.parse(rule) for rule in obj.get("rules") or ())
            self._roles[namespace, name] = rules

    def put_binding(self, namespace: str, name: str, obj: Obj | None) -> None:
        """Set a RoleBinding (without a namespace: a ClusterRoleBinding); None if it was deleted."""
        self._cached_verdicts.clear()
        previous = self._bindings.pop((namespace, name), None)
        for subject in previous.subjects if previous else ():
            bindings = self._by_subject[subject]
            del bindings[namespace, name]
            if not bindings:
                del self._by_subject[subject]
        if obj is None:
            return
        reference = obj.get("roleRef") or {}
        binding = _Binding(
            "RoleBinding" if namespace else "ClusterRoleBinding",
            namespace,
            name,
            reference.get("kind", ""),
            reference.get("name", ""),
            frozenset(_normalize_subjects(obj.get("subjects") or (), namespace)),
        )
        self._bindings[namespace, name] = binding
        for subject in binding.subjects:
            self._by_subject.setdefault(subject, {})[namespace, name] = binding

    def authorize(self, user: User, access: AccessAttributes) -> AccessVerdict:
        """Whether ``user`` may make a request with these attributes."""
        if MASTERS in user.groups:
            return AccessVerdict(True)
        key = (user, access)
        verdict = self._cached_verdicts.get(key)
        if verdict is None:
            if len(self._cached_verdicts) >= CACHE_SIZE:
                self._cached_verdicts.clear()
            verdict = self._cached_verdicts[key] = self._decide(user, access)
        return verdict

    def rules_for(self, user: User, namespace: str) -> list[PolicyRule]:
        """Every rule that applies to ``user`` in a namespace, cluster-wide ones first."""
        if MASTERS in user.groups:
            everything = frozenset({"*"})
            return [
                PolicyRule(everything, everything, everything),
                PolicyRule(everything, paths=everything),
            ]
        return [
            rule
            for binding in self._bindings_of(user, namespace)
            for rule in self._rules_of_binding(binding)
        ]

    def rules_of_role(self, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """The rules of one role, or None if it does not exist."""
        return self._roles.get((namespace, name))

    def missing_rules(
        self, user: User, namespace: str, required: Iterable[PolicyRule]
    ) -> list[PolicyRule]:
        """The parts of ``required`` that ``user`` does not have: granting them is an escalation."""
        owned = self.rules_for(user, namespace)
        return [
            part
            for rule in required
            for part in rule.break_down()
            if not any(owned_rule.covers(part) for owned_rule in owned)
        ]

    def _decide(self, user: User, access: AccessAttributes) -> AccessVerdict:
        for binding in self._bindings_of(user, access.namespace):
            for rule in self._rules_of_binding(binding):
                if rule.allows(access):
                    suffix = f"/{binding.namespace}" if binding.namespace else ""
                    subject = _describe_subject(binding, user)
                    return AccessVerdict(
                        True,
                        f'RBAC: allowed by {binding.kind} "{binding.name}{suffix}" of'
                        f' {binding.role_kind} "{binding.role_name}" to {subject}',
                    )
        return AccessVerdict(False)

    def _bindings_of(self, user: User, namespace: str) -> Iterator[_Binding]:
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        seen: set[tuple[str, str]] = set()
        for scope in ("", namespace) if namespace else ("",):
            for subject in subjects:
                for key, binding in self._by_subject.get(subject, {}).items():
                    if key[0] == scope and key not in seen:
                        seen.add(key)
                        yield binding

    def _rules_of_binding(self, binding: _Binding) -> tuple[PolicyRule, ...]:
        namespace = binding.namespace if binding.role_kind == "Role" else ""
        return self._roles.get((namespace, binding.role_name), ())


def refusal_message(user: User, access: AccessAttributes) -> str:
    """The message of a refusal, without the part that names the resource."""
    if access.path:
        return f'User "{user.name}" cannot {access.verb} path "{access.path}"'
    scope = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    return (
        f'User "{user.name}" cannot {access.verb} resource "{access.qualified_resource}"'
        f' in API group "{access.group}" {scope}'
    )


def _normalize_subjects(subjects: Iterable[Obj], namespace: str) -> Iterator[tuple[str, str]]:
    for subject in subjects:
        kind, name = subject.get("kind", ""), subject.get("name", "")
        if kind == "ServiceAccount":
            account_namespace = subject.get("namespace") or namespace
            yield "User", f"system:serviceaccount:{account_namespace}:{name}"
        else:
            yield kind, name


def _describe_subject(binding: _Binding, user: User) -> str:
    if ("User", user.name) in binding.subjects:
        return f'User "{user.name}"'
    group = next(group for group in user.groups if ("Group", group) in binding.subjects)
    return f'Group "{group}"'


def _path_matches(pattern: str, path: str) -> bool:
    return pattern in {"*", path} or (pattern.endswith("*") and path.startswith(pattern[:-1]))
