"""The answers "no" of an API server, worded so that clients which look for a phrase find it."""

from __future__ import annotations

from collections.abc import Sequence

from zonewise.api import field_errors
from zonewise.api.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    MethodNotAllowed,
    NotFound,
    ServerError,
    Status,
    StatusCause,
    StatusDetails,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
)
from zonewise.api.resource import Resource


def _status(
    code: int,
    reason: str,
    message: str,
    *,
    resource: Resource | None = None,
    name: str = "",
    causes: Sequence[StatusCause] = (),
    retry_after: int = 0,
) -> Status:
    details = None
    if resource or name or causes or retry_after:
        details = StatusDetails(
            name=name,
            group=resource.group if resource else "",
            kind=resource.plural if resource else "",
            causes=tuple(causes),
            retry_after_seconds=retry_after,
        )
    return Status(status="Failure", message=message, reason=reason, details=details, code=code)


def bad_request(message: str) -> BadRequest:
    """The request makes no sense."""
    return BadRequest(_status(400, "BadRequest", message))


def unauthorized() -> Unauthorized:
    """No valid credentials."""
    return Unauthorized(_status(401, "Unauthorized", "Unauthorized"))


def forbidden(
    resource: Resource, name: str, message: str, *, causes: Sequence[StatusCause] = ()
) -> Forbidden:
    """Authorization or admission refused it."""
    what = f'{resource.qualified} "{name}"' if name else resource.qualified
    return Forbidden(
        _status(
            403,
            "Forbidden",
            f"{what} is forbidden: {message}",
            resource=resource,
            name=name,
            causes=causes,
        )
    )


def forbidden_path(user: str, verb: str, path: str) -> Forbidden:
    """Authorization refused something that is not a resource."""
    text = f'forbidden: User "{user}" cannot {verb} path "{path}"'
    return Forbidden(
        Status(
            status="Failure", message=text, reason="Forbidden", details=StatusDetails(), code=403
        )
    )


def not_found(resource: Resource, name: str) -> NotFound:
    """No such object."""
    return NotFound(
        _status(
            404,
            "NotFound",
            f'{resource.qualified} "{name}" not found',
            resource=resource,
            name=name,
        )
    )


def no_such_resource() -> NotFound:
    """No such kind or subresource."""
    return NotFound(
        Status(
            status="Failure",
            message="the server could not find the requested resource",
            reason="NotFound",
            details=StatusDetails(),
            code=404,
        )
    )


def method_not_allowed() -> MethodNotAllowed:
    """The kind is there and has no such verb."""
    return MethodNotAllowed(
        Status(
            status="Failure",
            message="the server does not allow this method on the requested resource",
            reason="MethodNotAllowed",
            details=StatusDetails(),
            code=405,
        )
    )


def already_exists(resource: Resource, name: str) -> AlreadyExists:
    """The name is taken."""
    return AlreadyExists(
        _status(
            409,
            "AlreadyExists",
            f'{resource.qualified} "{name}" already exists',
            resource=resource,
            name=name,
        )
    )


VERSION_OF_NEW = "resourceVersion should not be set on objects to be created"


def elsewhere() -> BadRequest:
    """The object is of another namespace than the path."""
    return bad_request(
        "the namespace of the provided object does not match the namespace sent on the request"
    )


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def conflict(resource: Resource, name: str, why: str = MODIFIED) -> Conflict:
    """The object is not what the writer thinks it is."""
    return Conflict(
        _status(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}',
            resource=resource,
            name=name,
        )
    )


def unversioned(resource: Resource, name: str) -> Invalid:
    """An update that does not say what it updates, of a kind that insists."""
    cause = field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
    message = f'{resource.qualified} "{name}" is invalid: {cause.field}: {cause.message}'
    return Invalid(_status(422, "Invalid", message, resource=resource, name=name, causes=[cause]))


def not_meant(resource: Resource, name: str, what: str, wanted: str, have: str) -> Conflict:
    """A deletion whose preconditions do not hold; here a real server names the kind itself."""
    became = "deleted and then recreated" if what == "UID" else "modified"
    qualified = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return Conflict(
        Status(
            status="Failure",
            code=409,
            reason="Conflict",
            message=f'Operation cannot be fulfilled on {qualified} "{name}": the {what} in the'
            f" precondition ({wanted}) does not match the {what} in record ({have}). The object"
            f" might have been {became}",
            details=StatusDetails(name=name, group=resource.group, kind=resource.kind),
        )
    )


def expired(message: str) -> Gone:
    """The requested version is no longer kept."""
    return Gone(_status(410, "Expired", message))


def expired_continue(token: str) -> Gone:
    """A continue token that outlived its version, with one that continues from the present."""
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can"
        " start a new list without the continue parameter, or use the continue token in this"
        " response to retrieve the remainder of the results. Continuing with the provided token"
        " results in an inconsistent list - objects that were created, modified, or deleted between"
        " the time the first chunk was returned and now may show up in the list."
    )
    return Gone(
        Status(
            status="Failure",
            metadata={"continue": token},
            message=message,
            reason="Expired",
            code=410,
        )
    )


def too_large(limit: int) -> TooLarge:
    """The body is over the limit."""
    return TooLarge(
        _status(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")
    )


def too_many_operations(count: int, limit: int) -> TooLarge:
    """A JSON patch of too many operations."""
    text = f"The allowed maximum operations in a JSON patch is {limit}, got {count}"
    return TooLarge(_status(413, "RequestEntityTooLarge", text))


def unsupported_media_type(accepted: Sequence[str], hint: str = "") -> UnsupportedMediaType:
    """The body is in a format this server does not read."""
    text = (
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )
    return UnsupportedMediaType(
        _status(415, "UnsupportedMediaType", f"{text}; {hint}" if hint else text)
    )


def not_acceptable(accepted: Sequence[str], hint: str = "") -> ApiError:
    """The client takes no format this server writes."""
    text = "only the following media types are accepted: " + ", ".join(accepted)
    return ApiError(_status(406, "NotAcceptable", f"{text}; {hint}" if hint else text))


def too_many_requests(message: str) -> TooManyRequests:
    """Retry a second later."""
    return TooManyRequests(_status(429, "TooManyRequests", message, retry_after=1))


def over_budget(message: str, why: str, retry_after: int = 0) -> TooManyRequests:
    """A disruption budget does not allow it now."""
    return TooManyRequests(
        _status(
            429,
            "TooManyRequests",
            message,
            causes=(StatusCause(reason="DisruptionBudget", message=why),),
            retry_after=retry_after,
        )
    )


def over_budgets(message: str, reasons: Sequence[str]) -> TooManyRequests:
    """Several disruption budgets say: not now."""
    causes = tuple(StatusCause(reason="DisruptionBudget", message=why) for why in reasons)
    return TooManyRequests(_status(429, "TooManyRequests", message, causes=causes))


def too_contended(budget: str, retry_after: int) -> ServerError:
    """Others change a budget faster than this eviction can spend it."""
    text = f'couldn\'t update PodDisruptionBudget "{budget}" due to conflicts'
    return ServerError(_status(504, "Timeout", f"Timeout: {text}", retry_after=retry_after))


def forbidden_plainly(message: str) -> Forbidden:
    """A "no" that is about no resource."""
    return Forbidden(_status(403, "Forbidden", message))


def internal(message: str) -> ServerError:
    """Our fault, or that of a webhook we had to call."""
    return ServerError(
        _status(
            500,
            "InternalError",
            f"Internal error occurred: {message}",
            causes=(StatusCause(message=message),),
        )
    )


def not_built(message: str) -> ServerError:
    """Something a cluster in a process cannot do."""
    return ServerError(_status(501, "NotImplemented", message))


def unavailable(message: str) -> ServerError:
    """The server cannot take this now."""
    return ServerError(_status(503, "ServiceUnavailable", message))


def too_far_ahead(version: int, current: int) -> ServerError:
    """A resourceVersion that does not exist yet."""
    text = f"Too large resource version: {version}, current: {current}"
    return ServerError(
        _status(
            504,
            "Timeout",
            f"Timeout: {text}",
            causes=(
                StatusCause(reason="ResourceVersionTooLarge", message="Too large resource version"),
            ),
            retry_after=1,
        )
    )


def invalid_options(kind: str, found: Sequence[StatusCause]) -> Invalid:
    """Parameters of a request that cannot be."""
    return field_errors.refusal(Resource("meta.k8s.io", "v1", kind, ""), "", found)


def invalid_patch(value: str, why: str) -> Invalid:
    """A patch whose outcome is no object of its kind."""
    fault = field_errors.invalid("patch", value, why)
    return Invalid(
        _status(422, "Invalid", f' "" is invalid: patch: {fault.message}', causes=(fault,))
    )


def impossible_patch() -> Invalid:
    """A JSON patch that does not fit the object, or whose test failed."""
    return Invalid(
        Status(
            status="Failure",
            message="the server rejected our request due to an error in our request",
            reason="Invalid",
            details=StatusDetails(),
            code=422,
        )
    )


def plain_failure(message: str) -> ServerError:
    """A 500 without a reason, where a real server has none to give."""
    return ServerError(_status(500, "", message))


def not_found_to_apply(resource: Resource, name: str, uid: str) -> ApiError:
    """An apply that names the uid of an object that does not exist."""
    why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
    return conflict(resource, name, why)


def another_kind(resource: Resource, kind: str, name: str) -> Invalid:
    """A custom object that says it is of another kind; a real server then names that kind."""
    fault = field_errors.invalid("kind", kind, f"must be {resource.kind}")
    said = Resource(resource.group, resource.version, kind, "")
    return field_errors.refusal(said, name, [fault])


def invalid_scale(name: str, fault: StatusCause) -> Invalid:
    """A size that cannot be."""
    return field_errors.refusal(Resource("autoscaling", "v1", "Scale", ""), name, [fault])


def invalid_token_request(found: Sequence[StatusCause]) -> Invalid:
    """A token that cannot be had."""
    resource = Resource("authentication.k8s.io", "v1", "TokenRequest", "")
    return field_errors.refusal(resource, "", found)
