"""Routes every call to its handler.

It determines the user (impersonation), checks authorization, finds the kind and the verb.
Permission is checked before existence: an unauthorized client learns nothing about what exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from zonewise.api.errors import ApiError
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.auth.authorization import (
    AccessAttributes,
    Authorizer,
    refusal_message,
)
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.request import negotiation, paths, status_errors
from zonewise.embedded.apiserver.request.call import (
    Answer,
    Call,
    ImpersonatedUser,
    User,
    answer_error,
)
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.runtime.process.logs import logger

_log = logger("router")

Verb = Callable[[Call, ServedKind, Target], Awaitable[Answer]]

RequestCountKey = tuple[str, str, str, int]
"""Verb, resource, subresource and status code."""

SINGLE_OBJECT_VERBS = frozenset({"create", "update", "patch"})
"""Verbs that concern one object; the name of a new one is not in the path."""
NEEDS_USER = ("impersonate-group", "impersonate-uid")
AUTHENTICATED = "system:authenticated"


class Router:
    """Routes calls to verbs, subresources and non-resource paths."""

    def __init__(
        self,
        *,
        registry: Registry,
        authorizer: Authorizer,
        verbs: Mapping[str, Verb],
        subresources: Mapping[tuple[str, str], Mapping[str, Verb]],
        unstored: Mapping[str, Verb],
        pages: Callable[[Call], Answer | None],
        requests: Counter[RequestCountKey],
    ) -> None:
        self._requests = requests
        self._registry = registry
        self._authorizer = authorizer
        self._verbs = verbs
        self._subresources = subresources
        self._unstored = unstored
        self._pages = pages

    async def handle(self, call: Call) -> Answer:
        """Answer a call; errors are answers too."""
        target: Target | None = None
        try:
            target = paths.parse_path(call.path)
            answer = await self._handle(call, target)
        except ApiError as error:
            answer = answer_error(error)
        except Exception:
            # A bug must not end the connection, nor be mistaken for another answer.
            _log.exception("a request could not be answered", method=call.method, path=call.path)
            answer = answer_error(
                status_errors.internal("this is a fault in zonewise; see its log")
            )
        if call.warnings:
            answer.warnings = tuple(dict.fromkeys(call.warnings))
        if target is not None:
            self._count(call, target, answer.status)
        return answer

    def _count(self, call: Call, target: Target, code: int) -> None:
        """Count a request of a served resource; names of others are unbounded."""
        served = self._registry.by_path(target.group, target.version, target.plural)
        if served is None:
            return
        verb = call.method
        if verb in {"GET", "HEAD"}:
            watching = target.watch or (call.flag("watch") and not target.name)
            verb = "WATCH" if watching else "GET" if target.name else "LIST"
        elif verb == "DELETE" and not target.name:
            verb = "DELETECOLLECTION"
        is_known = target.subresource in served.kind.subresources
        subresource = target.subresource if is_known else ""
        self._requests[verb, target.plural, subresource, code] += 1

    async def _handle(self, call: Call, target: Target | None) -> Answer:
        access = _access_of(call, target)
        if not call.impersonate and any(name in call.headers for name in NEEDS_USER):
            raise status_errors.bad_request("impersonation of groups or a uid needs a user as well")
        if call.impersonate:
            call.user = self._impersonate(call.user, call.impersonate, access)
        self._check(call.user, access)
        if target is None:
            page = self._pages(call)
            if page is None:
                return Answer(
                    status=404,
                    body=b"404 page not found\n",
                    content_type="text/plain; charset=utf-8",
                )
            return page
        if call.method == "HEAD":
            raise status_errors.method_not_allowed()
        served = self._registry.by_path(target.group, target.version, target.plural)
        if served is None:
            return self._answer_unknown(target)
        if served.deprecation and not call.in_process:
            call.warnings.append(served.deprecation)
        namespaced = served.kind.resource.namespaced
        if (target.namespace and not namespaced) or (
            namespaced and target.name and not target.namespace
        ):
            raise status_errors.no_such_resource()
        verb = self._find_verb(access, served, target, call.headers.get("accept", ""))
        if access.verb in SINGLE_OBJECT_VERBS:
            call.check_options()
        if access.verb in {"update", "patch"}:
            call.may_create = lambda: self._check(call.user, replace(access, verb="create"))
        return await verb(call, served, target)

    def _check(self, user: User, access: AccessAttributes) -> None:
        if not self._authorizer.authorize(user, access).allowed:
            raise _forbidden(user, access)

    def _find_verb(
        self, access: AccessAttributes, served: ServedKind, target: Target, accept: str
    ) -> Verb:
        if target.subresource:
            subresources = served.kind.subresources
            if target.subpath and target.subresource != "proxy" and not served.custom:
                raise status_errors.no_such_resource()
            if target.subresource not in subresources:
                if served.custom:
                    raise status_errors.not_found(served.kind.resource, target.name)
                raise status_errors.no_such_resource()
            verbs = self._subresources.get((served.storage, target.subresource)) or (
                self._subresources.get(("*", target.subresource), {})
            )
            verb = verbs.get(access.verb)
        elif bool(target.name) is (access.verb == "create") and access.verb in SINGLE_OBJECT_VERBS:
            verb = None
        elif access.verb == "create" and served.storage in self._unstored:
            if negotiation.negotiate(accept).form != "object":
                raise status_errors.not_acceptable(negotiation.ANSWER_TYPES)
            verb = self._unstored[served.storage]
        elif access.verb in served.kind.verbs:
            verb = self._verbs.get(access.verb)
        else:
            verb = None
        if verb is None:
            raise status_errors.method_not_allowed()
        return verb

    def _answer_unknown(self, target: Target) -> Answer:
        if any(
            served.kind.resource.group == target.group
            and served.kind.resource.version == target.version
            for served in self._registry
        ):
            raise status_errors.no_such_resource()
        return Answer(
            status=404, body=b"404 page not found\n", content_type="text/plain; charset=utf-8"
        )

    def _impersonate(
        self, user: User, impersonated: ImpersonatedUser, access: AccessAttributes
    ) -> User:
        required = [_impersonate_access(impersonated.user)]
        required += [
            AccessAttributes(verb="impersonate", resource="groups", name=group)
            for group in impersonated.groups
        ]
        if impersonated.uid:
            required.append(
                AccessAttributes(
                    verb="impersonate",
                    group="authentication.k8s.io",
                    resource="uids",
                    name=impersonated.uid,
                )
            )
        for key, values in impersonated.extra:
            required += [
                AccessAttributes(
                    verb="impersonate",
                    group="authentication.k8s.io",
                    resource="userextras",
                    subresource=key,
                    name=value,
                )
                for value in values
            ]
        for required_access in required:
            if not self._authorizer.authorize(user, required_access).allowed:
                # A real server first checks the permission to impersonate for this request only,
                # and its refusal names that.
                constrained = AccessAttributes(
                    verb=f"impersonate-on:user-info:{access.verb}",
                    group=access.group,
                    resource=access.resource,
                    subresource=access.subresource,
                    namespace=access.namespace,
                    name=access.name,
                    path=access.path,
                )
                raise _forbidden(user, constrained)
        groups = tuple(impersonated.groups)
        if impersonated.user.startswith("system:serviceaccount:") and not groups:
            namespace = impersonated.user.split(":")[2]
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        if AUTHENTICATED not in groups and impersonated.user != "system:anonymous":
            groups = (*groups, AUTHENTICATED)
        return User(impersonated.user, groups, impersonated.uid, impersonated.extra)


def _impersonate_access(name: str) -> AccessAttributes:
    if name.startswith("system:serviceaccount:") and name.count(":") == 3:
        _, _, namespace, account = name.split(":")
        return AccessAttributes(
            verb="impersonate", resource="serviceaccounts", namespace=namespace, name=account
        )
    return AccessAttributes(verb="impersonate", resource="users", name=name)


def _access_of(call: Call, target: Target | None) -> AccessAttributes:
    if target is None:
        return AccessAttributes(verb=call.method.lower(), path=call.path)
    return AccessAttributes(
        verb=_verb_of(call, target),
        group=target.group,
        version=target.version,
        resource=target.plural,
        subresource=target.subresource,
        namespace=target.namespace
        or (target.name if target.plural == "namespaces" and not target.group else ""),
        name=target.name,
    )


def _verb_of(call: Call, target: Target) -> str:
    match call.method:
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "PATCH":
            return "patch"
        case "DELETE":
            return "delete" if target.name else "deletecollection"
        case "GET" | "HEAD":
            if target.watch or (call.flag("watch") and not target.name):
                return "watch"
            return "get" if target.name else "list"
    raise status_errors.method_not_allowed()


def _forbidden(user: User, access: AccessAttributes) -> ApiError:
    if access.path:
        return status_errors.forbidden_path(user.name, access.verb, access.path)
    resource = Resource(access.group, access.version, "", access.resource)
    return status_errors.forbidden(resource, access.name, refusal_message(user, access))
