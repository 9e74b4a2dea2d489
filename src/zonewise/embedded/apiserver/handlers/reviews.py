"""Reviews: requests in the form of objects. They are answered and never stored.

Own identity, own access, another user's access, own rules, and the user of a token.
"""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.auth.authentication import Authenticator
from zonewise.embedded.apiserver.auth.authorization import Attempt, Authorizer, PolicyRule
from zonewise.embedded.apiserver.auth.tokens import BadToken
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers.router import Verb
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, User
from zonewise.embedded.apiserver.request.paths import Target

Obj = dict[str, Any]


class Reviews:
    """Answers reviews."""

    def __init__(
        self, *, authorizer: Authorizer, authenticator: Authenticator, writer: Writer
    ) -> None:
        self._authorizer = authorizer
        self._authenticator = authenticator
        self._writer = writer
        self.verbs: dict[str, Verb] = {
            "authentication.k8s.io/selfsubjectreviews": self.who_am_i,
            "authentication.k8s.io/tokenreviews": self.whose_token,
            "authorization.k8s.io/localsubjectaccessreviews": self.may_they_here,
            "authorization.k8s.io/selfsubjectaccessreviews": self.may_i,
            "authorization.k8s.io/selfsubjectrulesreviews": self.what_may_i,
            "authorization.k8s.io/subjectaccessreviews": self.may_they,
        }

    async def who_am_i(self, call: Call, served: Served, target: Target) -> Answer:
        """SelfSubjectReview."""
        review = bodies.read(call, served)
        review["metadata"]["creationTimestamp"] = self._writer.context(call).now
        review["status"] = {"userInfo": call.user.info()}
        return _answer(review)

    async def whose_token(self, call: Call, served: Served, target: Target) -> Answer:
        """TokenReview."""
        review = bodies.read(call, served)
        spec = review.get("spec") or {}
        if not spec.get("token"):
            raise status_errors.bad_request("token is required for TokenReview in authentication")
        try:
            user, audiences = self._authenticator.review(
                spec["token"], tuple(spec.get("audiences") or ())
            )
        except BadToken as error:
            review["status"] = {"user": {}, "error": str(error)}
        else:
            review["status"] = {"authenticated": True, "user": user.info()}
            if audiences:
                review["status"]["audiences"] = list(audiences)
        return _answer(review)

    async def may_i(self, call: Call, served: Served, target: Target) -> Answer:
        """SelfSubjectAccessReview."""
        review = bodies.read(call, served)
        spec = review.get("spec") or {}
        found = _one_question(spec)
        if found:
            raise _refused(served, found)
        return self._judged(review, call.user, _act(spec))

    async def may_they(self, call: Call, served: Served, target: Target) -> Answer:
        """SubjectAccessReview."""
        review = bodies.read(call, served)
        spec = review.get("spec") or {}
        found = _one_question(spec) + _somebody(spec)
        if found:
            raise _refused(served, found)
        return self._judged(review, _subject(spec), _act(spec))

    async def may_they_here(self, call: Call, served: Served, target: Target) -> Answer:
        """LocalSubjectAccessReview."""
        review = bodies.read(call, served)
        spec = review.get("spec") or {}
        found = _one_question(spec) + _somebody(spec)
        place = (spec.get("resourceAttributes") or {}).get("namespace", "")
        if spec.get("nonResourceAttributes"):
            text = "disallowed on this kind of request"
            found.append(
                field_errors.invalid(
                    "spec.nonResourceAttributes", spec["nonResourceAttributes"], text
                )
            )
        elif place != target.namespace:
            text = "must match metadata.namespace"
            found.append(field_errors.invalid("spec.resourceAttributes.namespace", place, text))
        if found:
            raise _refused(served, found)
        review["metadata"]["namespace"] = target.namespace
        return self._judged(review, _subject(spec), _act(spec))

    async def what_may_i(self, call: Call, served: Served, target: Target) -> Answer:
        """SelfSubjectRulesReview."""
        review = bodies.read(call, served)
        namespace = (review.get("spec") or {}).get("namespace", "")
        if not namespace:
            raise status_errors.bad_request("no namespace on request")
        rules = self._authorizer.rules(call.user, namespace)
        review["spec"] = {}
        review["status"] = {
            "resourceRules": [_resource_rule(rule) for rule in rules if rule.resources],
            "nonResourceRules": [
                {"verbs": sorted(rule.verbs), "nonResourceURLs": sorted(rule.paths)}
                for rule in rules
                if rule.paths
            ],
            "incomplete": False,
        }
        return _answer(review)

    def _judged(self, review: Obj, user: User, act: Attempt) -> Answer:
        verdict = self._authorizer.judge(user, act)
        review["status"] = {"allowed": verdict.allowed}
        if verdict.reason:
            review["status"]["reason"] = verdict.reason
        return _answer(review)


def _answer(review: Obj) -> Answer:
    return Answer(status=201, body=bodies.encode(review))


def _refused(served: Served, found: list[StatusCause]) -> Exception:
    return field_errors.refusal(Resource(served.kind.resource.group, "", "", ""), "", found)


def _one_question(spec: Obj) -> list[StatusCause]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        text = "cannot be specified in combination with resourceAttributes"
        return [field_errors.invalid("spec.nonResourceAttributes", path, text)]
    if resource is None and path is None:
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [field_errors.invalid("spec.resourceAttributes", None, text)]
    return []


def _somebody(spec: Obj) -> list[StatusCause]:
    if spec.get("user") or spec.get("groups"):
        return []
    return [
        field_errors.invalid("spec.user", "", "at least one of user or group must be specified")
    ]


def _act(spec: Obj) -> Attempt:
    path = spec.get("nonResourceAttributes")
    if path is not None:
        return Attempt(verb=path.get("verb", ""), path=path.get("path", ""))
    wanted = spec["resourceAttributes"]
    return Attempt(
        verb=wanted.get("verb", ""),
        group=wanted.get("group", ""),
        version=wanted.get("version", ""),
        resource=wanted.get("resource", ""),
        subresource=wanted.get("subresource", ""),
        namespace=wanted.get("namespace", ""),
        name=wanted.get("name", ""),
    )


def _subject(spec: Obj) -> User:
    extra = tuple(sorted((key, tuple(values)) for key, values in (spec.get("extra") or {}).items()))
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)


def _resource_rule(rule: PolicyRule) -> Obj:
    found: Obj = {
        "verbs": sorted(rule.verbs),
        "apiGroups": sorted(rule.groups),
        "resources": sorted(rule.resources),
    }
    if rule.names:
        found["resourceNames"] = sorted(rule.names)
    return found
