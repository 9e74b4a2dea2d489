"""Every call passes here once.

It determines the user (impersonation), checks authorization, finds the kind, and hands the call to
its handler. Permission is checked before existence: an unauthorized client learns nothing about
what exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from zonewise.api.errors import ApiError
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.auth.authorization import Attempt, Authorizer, refusal
from zonewise.embedded.apiserver.registry import Registry, Served
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

Verb = Callable[[Call, Served, Target], Awaitable[Answer]]

Counted = tuple[str, str, str, int]
"""Verb, resource, subresource and the code of the answer."""

ABOUT_ONE = frozenset({"create", "update", "patch"})
"""Verbs that concern one object; the name of a new one is not in the path."""
NEEDS_USER = ("impersonate-group", "impersonate-uid")
AUTHENTICATED = "system:authenticated"


class Router:
    """Routes calls to verbs, subresources and pages."""

    def __init__(
        self,
        *,
        registry: Registry,
        authorizer: Authorizer,
        verbs: Mapping[str, Verb],
        subresources: Mapping[tuple[str, str], Mapping[str, Verb]],
        questions: Mapping[str, Verb],
        pages: Callable[[Call], Answer | None],
        requests: Counter[Counted],
    ) -> None:
        self._requests = requests
        self._registry = registry
        self._authorizer = authorizer
        self._verbs = verbs
        self._subresources = subresources
        self._questions = questions
        self._pages = pages

    async def handle(self, call: Call) -> Answer:
        """The answer to a call; refusals are answers too."""
        target: Target | None = None
        try:
            target = paths.parse(call.path)
            answer = await self._handle(call, target)
        except ApiError as error:
            answer = answer_error(error)
        except Exception:
            # A bug of ours must not end the connection, nor be mistaken for another answer.
            _log.exception("a request could not be answered", method=call.method, path=call.path)
            answer = answer_error(
                status_errors.internal("this is a fault in zonewise; its log says more")
            )
        if call.warnings:
            answer.warnings = tuple(dict.fromkeys(call.warnings))
        if target is not None:
            self._count(call, target, answer.status)
        return answer

    def _count(self, call: Call, target: Target, code: int) -> None:
        """Count a request of a resource that is served; names of others could be anything."""
        served = self._registry.at(target.group, target.version, target.plural)
        if served is None:
            return
        verb = call.method
        if verb in {"GET", "HEAD"}:
            watching = target.watch or (call.flag("watch") and not target.name)
            verb = "WATCH" if watching else "GET" if target.name else "LIST"
        elif verb == "DELETE" and not target.name:
            verb = "DELETECOLLECTION"
        known = target.subresource in served.kind.subresources
        below = target.subresource if known else ""
        self._requests[verb, target.plural, below, code] += 1

    async def _handle(self, call: Call, target: Target | None) -> Answer:
        act = _act(call, target)
        if not call.impersonate and any(name in call.headers for name in NEEDS_USER):
            raise status_errors.bad_request("impersonation of groups or a uid needs a user as well")
        if call.impersonate:
            call.user = self._impersonate(call.user, call.impersonate, act)
        self._check(call.user, act)
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
        served = self._registry.at(target.group, target.version, target.plural)
        if served is None:
            return self._unknown(target)
        if served.deprecation and not call.inside:
            call.warnings.append(served.deprecation)
        namespaced = served.kind.resource.namespaced
        if (target.namespace and not namespaced) or (
            namespaced and target.name and not target.namespace
        ):
            raise status_errors.no_such_resource()
        verb = self._find(act, served, target, call.headers.get("accept", ""))
        if act.verb in ABOUT_ONE:
            call.check_options()
        if act.verb in {"update", "patch"}:
            call.may_create = lambda: self._check(call.user, replace(act, verb="create"))
        return await verb(call, served, target)

    def _check(self, user: User, act: Attempt) -> None:
        if not self._authorizer.judge(user, act).allowed:
            raise _forbidden(user, act)

    def _find(self, act: Attempt, served: Served, target: Target, accept: str) -> Verb:
        if target.subresource:
            known = served.kind.subresources
            if target.rest and target.subresource != "proxy" and not served.custom:
                raise status_errors.no_such_resource()
            if target.subresource not in known:
                if served.custom:
                    raise status_errors.not_found(served.kind.resource, target.name)
                raise status_errors.no_such_resource()
            verbs = self._subresources.get((served.storage, target.subresource)) or (
                self._subresources.get(("*", target.subresource), {})
            )
            verb = verbs.get(act.verb)
        elif bool(target.name) is (act.verb == "create") and act.verb in ABOUT_ONE:
            verb = None
        elif act.verb == "create" and served.storage in self._questions:
            if negotiation.wanted(accept).form != "object":
                raise status_errors.not_acceptable(negotiation.ANSWER_TYPES)
            verb = self._questions[served.storage]
        elif act.verb in served.kind.verbs:
            verb = self._verbs.get(act.verb)
        else:
            verb = None
        if verb is None:
            raise status_errors.method_not_allowed()
        return verb

    def _unknown(self, target: Target) -> Answer:
        if any(
            one.kind.resource.group == target.group and one.kind.resource.version == target.version
            for one in self._registry
        ):
            raise status_errors.no_such_resource()
        return Answer(
            status=404, body=b"404 page not found\n", content_type="text/plain; charset=utf-8"
        )

    def _impersonate(self, user: User, impersonated: ImpersonatedUser, act: Attempt) -> User:
        asked = [_person(impersonated.user)]
        asked += [
            Attempt(verb="impersonate", resource="groups", name=group)
            for group in impersonated.groups
        ]
        if impersonated.uid:
            asked.append(
                Attempt(
                    verb="impersonate",
                    group="authentication.k8s.io",
                    resource="uids",
                    name=impersonated.uid,
                )
            )
        for key, values in impersonated.extra:
            asked += [
                Attempt(
                    verb="impersonate",
                    group="authentication.k8s.io",
                    resource="userextras",
                    subresource=key,
                    name=value,
                )
                for value in values
            ]
        for one in asked:
            if not self._authorizer.judge(user, one).allowed:
                # A real server first checks the narrower permission to impersonate for this one
                # act, and words its refusal so.
                narrow = Attempt(
                    verb=f"impersonate-on:user-info:{act.verb}",
                    group=act.group,
                    resource=act.resource,
                    subresource=act.subresource,
                    namespace=act.namespace,
                    name=act.name,
                    path=act.path,
                )
                raise _forbidden(user, narrow)
        groups = tuple(impersonated.groups)
        if impersonated.user.startswith("system:serviceaccount:") and not groups:
            place = impersonated.user.split(":")[2]
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{place}")
        if AUTHENTICATED not in groups and impersonated.user != "system:anonymous":
            groups = (*groups, AUTHENTICATED)
        return User(impersonated.user, groups, impersonated.uid, impersonated.extra)


def _person(name: str) -> Attempt:
    if name.startswith("system:serviceaccount:") and name.count(":") == 3:
        _, _, namespace, account = name.split(":")
        return Attempt(
            verb="impersonate", resource="serviceaccounts", namespace=namespace, name=account
        )
    return Attempt(verb="impersonate", resource="users", name=name)


def _act(call: Call, target: Target | None) -> Attempt:
    if target is None:
        return Attempt(verb=call.method.lower(), path=call.path)
    return Attempt(
        verb=_verb(call, target),
        group=target.group,
        version=target.version,
        resource=target.plural,
        subresource=target.subresource,
        namespace=target.namespace
        or (target.name if target.plural == "namespaces" and not target.group else ""),
        name=target.name,
    )


def _verb(call: Call, target: Target) -> str:
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


def _forbidden(user: User, act: Attempt) -> ApiError:
    if act.path:
        return status_errors.forbidden_path(user.name, act.verb, act.path)
    resource = Resource(act.group, act.version, "", act.resource)
    return status_errors.forbidden(resource, act.name, refusal(user, act))
