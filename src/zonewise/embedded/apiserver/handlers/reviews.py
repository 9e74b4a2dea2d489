"""Reviews: requests in the form of objects, which are answered and never stored.

They ask for the caller's identity, access and rules, for another user's access, and for the user of
a token.
"""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.auth.authentication import Authenticator
from zonewise.embedded.apiserver.auth.authorization import AccessAttributes, Authorizer, PolicyRule
from zonewise.embedded.apiserver.auth.tokens import BadToken
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers.router import Verb
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import ServedKind
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
            "authentication.k8s.io/selfsubjectreviews": self.review_self,
            "authentication.k8s.io/tokenreviews": self.review_token,
            "authorization.k8s.io/localsubjectaccessreviews": self.review_local_access,
            "authorization.k8s.io/selfsubjectaccessreviews": self.review_self_access,
            "authorization.k8s.io/selfsubjectrulesreviews": self.review_self_rules,
            "authorization.k8s.io/subjectaccessreviews": self.review_access,
        }

    async def review_self(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """SelfSubjectReview."""
        review = bodies.read_object(call, served)
        review["metadata"]["creationTimestamp"] = self._writer.context(call).now
        review["status"] = {"userInfo": call.user.info()}
        return _answer(review)

    async def review_token(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """TokenReview."""
        review = bodies.read_object(call, served)
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

    async def review_self_access(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """SelfSubjectAccessReview."""
        review = bodies.read_object(call, served)
        spec = review.get("spec") or {}
        errors = _validate_attributes(spec)
        if errors:
            raise _invalid_review(served, errors)
        return self._answer_access(review, call.user, _access_of(spec))

    async def review_access(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """SubjectAccessReview."""
        review = bodies.read_object(call, served)
        spec = review.get("spec") or {}
        errors = _validate_attributes(spec) + _validate_subject(spec)
        if errors:
            raise _invalid_review(served, errors)
        return self._answer_access(review, _user_of(spec), _access_of(spec))

    async def review_local_access(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """LocalSubjectAccessReview."""
        review = bodies.read_object(call, served)
        spec = review.get("spec") or {}
        errors = _validate_attributes(spec) + _validate_subject(spec)
        namespace = (spec.get("resourceAttributes") or {}).get("namespace", "")
        if spec.get("nonResourceAttributes"):
            text = "disallowed on this kind of request"
            errors.append(
                field_errors.invalid(
                    "spec.nonResourceAttributes", spec["nonResourceAttributes"], text
                )
            )
        elif namespace != target.namespace:
            text = "must match metadata.namespace"
            errors.append(
                field_errors.invalid("spec.resourceAttributes.namespace", namespace, text)
            )
        if errors:
            raise _invalid_review(served, errors)
        review["metadata"]["namespace"] = target.namespace
        return self._answer_access(review, _user_of(spec), _access_of(spec))

    async def review_self_rules(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """SelfSubjectRulesReview."""
        review = bodies.read_object(call, served)
        namespace = (review.get("spec") or {}).get("namespace", "")
        if not namespace:
            raise status_errors.bad_request("no namespace on request")
        rules = self._authorizer.rules_for(call.user, namespace)
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

    def _answer_access(self, review: Obj, user: User, access: AccessAttributes) -> Answer:
        verdict = self._authorizer.authorize(user, access)
        review["status"] = {"allowed": verdict.allowed}
        if verdict.reason:
            review["status"]["reason"] = verdict.reason
        return _answer(review)


def _answer(review: Obj) -> Answer:
    return Answer(status=201, body=bodies.encode(review))


def _invalid_review(served: ServedKind, errors: list[StatusCause]) -> Exception:
    return field_errors.new_invalid(Resource(served.kind.resource.group, "", "", ""), "", errors)


def _validate_attributes(spec: Obj) -> list[StatusCause]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        text = "cannot be specified in combination with resourceAttributes"
        return [field_errors.invalid("spec.nonResourceAttributes", path, text)]
    if resource is None and path is None:
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [field_errors.invalid("spec.resourceAttributes", None, text)]
    return []


def _validate_subject(spec: Obj) -> list[StatusCause]:
    if spec.get("user") or spec.get("groups"):
        return []
    return [
        field_errors.invalid("spec.user", "", "at least one of user or group must be specified")
    ]


def _access_of(spec: Obj) -> AccessAttributes:
    path = spec.get("nonResourceAttributes")
    if path is not None:
        return AccessAttributes(verb=path.get("verb", ""), path=path.get("path", ""))
    attributes = spec["resourceAttributes"]
    return AccessAttributes(
        verb=attributes.get("verb", ""),
        group=attributes.get("group", ""),
        version=attributes.get("version", ""),
        resource=attributes.get("resource", ""),
        subresource=attributes.get("subresource", ""),
        namespace=attributes.get("namespace", ""),
        name=attributes.get("name", ""),
    )


def _user_of(spec: Obj) -> User:
    extra = tuple(sorted((key, tuple(values)) for key, values in (spec.get("extra") or {}).items()))
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)


def _resource_rule(rule: PolicyRule) -> Obj:
    document: Obj = {
        "verbs": sorted(rule.verbs),
        "apiGroups": sorted(rule.groups),
        "resources": sorted(rule.resources),
    }
    if rule.names:
        document["resourceNames"] = sorted(rule.names)
    return document
