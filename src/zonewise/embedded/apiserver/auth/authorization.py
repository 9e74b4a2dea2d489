"""Role-based access control, evaluated from the stored roles and bindings.

Roles and bindings are compiled when they change, not at each request: a binding is indexed by each
of its subjects, so a decision reads only the bindings of one user and its groups. Decisions are
cached until the next change. Members of ``system:masters`` pass before any role is read, so a
broken role never locks the owner out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from zonewise.embedded.apiserver.request.call import User

Obj = dict[str, Any]

MASTERS = "system:masters"
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
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
    def what(self) -> str:
        """Resource and subresource as rules name them."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """Allowed or not, and by what."""

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
    def read(cls, rule: Obj) -> PolicyRule:
        """The rule as a role has it."""
        return cls(
            frozenset(rule.get("verbs") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("resources") or ()),
            frozenset(rule.get("resourceNames") or ()),
            frozenset(rule.get("nonResourceURLs") or ()),
        )

    def allows(self, act: Attempt) -> bool:
        """Whether this rule alone permits the act."""
        if "*" not in self.verbs and act.verb not in self.verbs:
            return False
        if act.path:
            return any(_path_matches(pattern, act.path) for pattern in self.paths)
        return (
            ("*" in self.groups or act.group in self.groups)
            and self._resource(act)
            and (not self.names or act.name in self.names)
        )

    def _resource(self, act: Attempt) -> bool:
        if "*" in self.resources or act.what in self.resources:
            return True
        return bool(act.subresource) and f"*/{act.subresource}" in self.resources

    def acts(self) -> Iterator[PolicyRule]:
        """The rule taken apart into rules of one verb on one thing each."""
        for verb in self.verbs:
            one = frozenset({verb})
            for path in self.paths:
                yield PolicyRule(one, paths=frozenset({path}))
            for group in self.groups:
                for resource in self.resources:
                    for name in self.names or {""}:
                        yield PolicyRule(
                            one,
                            frozenset({group}),
                            frozenset({resource}),
                            frozenset({name}) if name else frozenset(),
                        )

    def covers(self, part: PolicyRule) -> bool:
        """Whether this rule permits all that a taken-apart ``part`` does."""
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
        self._remembered: dict[tuple[User, Attempt], AccessVerdict] = {}

    def put_role(self, namespace: str, name: str, obj: Obj | None) -> None:
        """A Role (or, with no namespace, a ClusterRole) is now this, or deleted."""
        self._remembered.clear()
        if obj is None:
            self._roles.pop((namespace, name), None)
        else:
            rules = tuple(PolicyRule.read(rule) for rule in obj.get("rules") or ())
            self._roles[namespace, name] = rules

    def put_binding(self, namespace: str, name: str, obj: Obj | None) -> None:
        """A RoleBinding (or ClusterRoleBinding) is now this, or deleted."""
        self._remembered.clear()
        before = self._bindings.pop((namespace, name), None)
        for subject in before.subjects if before else ():
            filed = self._by_subject[subject]
            del filed[namespace, name]
            if not filed:
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
            frozenset(_subjects(obj.get("subjects") or (), namespace)),
        )
        self._bindings[namespace, name] = binding
        for subject in binding.subjects:
            self._by_subject.setdefault(subject, {})[namespace, name] = binding

    def judge(self, user: User, act: Attempt) -> AccessVerdict:
        """Whether ``user`` may do ``act``."""
        if MASTERS in user.groups:
            return AccessVerdict(True)
        key = (user, act)
        known = self._remembered.get(key)
        if known is None:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            known = self._remembered[key] = self._decide(user, act)
        return known

    def rules(self, user: User, namespace: str) -> list[PolicyRule]:
        """Every rule that holds for ``user`` in a namespace, cluster-wide ones first."""
        if MASTERS in user.groups:
            everything = frozenset({"*"})
            return [
                PolicyRule(everything, everything, everything),
                PolicyRule(everything, paths=everything),
            ]
        return [rule for binding in self._of(user, namespace) for rule in self._rules(binding)]

    def role(self, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """The rules of one role, or None where it does not exist."""
        return self._roles.get((namespace, name))

    def missing(self, user: User, namespace: str, wanted: Iterable[PolicyRule]) -> list[PolicyRule]:
        """The parts of ``wanted`` that ``user`` does not hold: what would be an escalation."""
        held = self.rules(user, namespace)
        return [
            part
            for rule in wanted
            for part in rule.acts()
            if not any(one.covers(part) for one in held)
        ]

    def _decide(self, user: User, act: Attempt) -> AccessVerdict:
        for binding in self._of(user, act.namespace):
            for rule in self._rules(binding):
                if rule.allows(act):
                    place = f"/{binding.namespace}" if binding.namespace else ""
                    return AccessVerdict(
                        True,
                        f'RBAC: allowed by {binding.kind} "{binding.name}{place}" of'
                        f' {binding.role_kind} "{binding.role_name}" to {_subject(binding, user)}',
                    )
        return AccessVerdict(False)

    def _of(self, user: User, namespace: str) -> Iterator[_Binding]:
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        seen: set[tuple[str, str]] = set()
        for place in ("", namespace) if namespace else ("",):
            for subject in subjects:
                for key, binding in self._by_subject.get(subject, {}).items():
                    if key[0] == place and key not in seen:
                        seen.add(key)
                        yield binding

    def _rules(self, binding: _Binding) -> tuple[PolicyRule, ...]:
        place = binding.namespace if binding.role_kind == "Role" else ""
        return self._roles.get((place, binding.role_name), ())


def refusal(user: User, act: Attempt) -> str:
    """The sentence of a refusal, without the part that names the resource."""
    if act.path:
        return f'User "{user.name}" cannot {act.verb} path "{act.path}"'
    where = f'in the namespace "{act.namespace}"' if act.namespace else "at the cluster scope"
    return (
        f'User "{user.name}" cannot {act.verb} resource "{act.what}"'
        f' in API group "{act.group}" {where}'
    )


def _subjects(subjects: Iterable[Obj], namespace: str) -> Iterator[tuple[str, str]]:
    for subject in subjects:
        kind, name = subject.get("kind", ""), subject.get("name", "")
        if kind == "ServiceAccount":
            place = subject.get("namespace") or namespace
            yield "User", f"system:serviceaccount:{place}:{name}"
        else:
            yield kind, name


def _subject(binding: _Binding, user: User) -> str:
    if ("User", user.name) in binding.subjects:
        return f'User "{user.name}"'
    group = next(group for group in user.groups if ("Group", group) in binding.subjects)
    return f'Group "{group}"'


def _path_matches(pattern: str, path: str) -> bool:
    return pattern in {"*", path} or (pattern.endswith("*") and path.startswith(pattern[:-1]))
