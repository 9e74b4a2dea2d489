"""The errors of an API server, worded as a real one does: clients look for phrases."""

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
    details: StatusDetails | None = None,
) -> Status:
    if details is None and (resource or name or causes or retry_after):
        details = StatusDetails(
            name=name,
            group=resource.group if resource else "",
            kind=resource.plural if resource else "",
            causes=tuple(causes),
            retry_after_seconds=retry_after,
        )
    return Status(status="Failure", message=message, reason=reason, details=details, code=code)


def bad_request(message: str) -> BadRequest:
    """The request is malformed."""
    return BadRequest(_status(400, "BadRequest", message))


def unauthorized() -> Unauthorized:
    """No valid credentials."""
    return Unauthorized(_status(401, "Unauthorized", "Unauthorized"))


def forbidden(
    resource: Resource, name: str, message: str, *, causes: Sequence[StatusCause] = ()
) -> Forbidden:
    """Authorization or admission refused it."""
    subject = f'{resource.qualified} "{name}"' if name else resource.qualified
    text = f"{subject} is forbidden: {message}"
    return Forbidden(_status(403, "Forbidden", text, resource=resource, name=name, causes=causes))


def forbidden_path(user: str, verb: str, path: str) -> Forbidden:
    """Authorization refused something that is not a resource."""
    text = f'forbidden: User "{user}" cannot {verb} path "{path}"'
    return Forbidden(_status(403, "Forbidden", text, details=StatusDetails()))


def not_found(resource: Resource, name: str) -> NotFound:
    """No such object."""
    message = f'{resource.qualified} "{name}" not found'
    return NotFound(_status(404, "NotFound", message, resource=resource, name=name))


def no_such_resource() -> NotFound:
    """No such kind or subresource."""
    message = "the server could not find the requested resource"
    return NotFound(_status(404, "NotFound", message, details=StatusDetails()))


def method_not_allowed() -> MethodNotAllowed:
    """The kind is served and has no such verb."""
    message = "the server does not allow this method on the requested resource"
    return MethodNotAllowed(_status(405, "MethodNotAllowed", message, details=StatusDetails()))


def already_exists(resource: Resource, name: str) -> AlreadyExists:
    """The name is taken."""
    message = f'{resource.qualified} "{name}" already exists'
    return AlreadyExists(_status(409, "AlreadyExists", message, resource=resource, name=name))


VERSION_ON_CREATE = "resourceVersion should not be set on objects to be created"


def namespace_mismatch() -> BadRequest:
    """The object is in another namespace than the path."""
    return bad_request(
        "the namespace of the provided object does not match the namespace sent on the request"
    )


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def conflict(resource: Resource, name: str, reason: str = MODIFIED) -> Conflict:
    """The object is not in the state that the write expects."""
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {reason}'
    return Conflict(_status(409, "Conflict", message, resource=resource, name=name))


def missing_version(resource: Resource, name: str) -> Invalid:
    """An update without resourceVersion, of a kind that requires it."""
    cause = field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
    message = f'{resource.qualified} "{name}" is invalid: {cause.field}: {cause.message}'
    return Invalid(_status(422, "Invalid", message, resource=resource, name=name, causes=[cause]))


def precondition_failed(
    resource: Resource, name: str, field: str, expected: str, actual: str
) -> Conflict:
    """A deletion whose preconditions fail; a real server names the kind here, not the resource."""
    change = "deleted and then recreated" if field == "UID" else "modified"
    qualified = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    message = (
        f'Operation cannot be fulfilled on {qualified} "{name}": the {field} in the precondition'
        f" ({expected}) does not match the {field} in record ({actual}). The object might have been"
        f" {change}"
    )
    details = StatusDetails(name=name, group=resource.group, kind=resource.kind)
    return Conflict(_status(409, "Conflict", message, details=details))


def expired(message: str) -> Gone:
    """The requested version is no longer available."""
    return Gone(_status(410, "Expired", message))


def expired_continue(token: str) -> Gone:
    """A continue token whose version expired, with one that continues at the present version."""
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
    """The body is in a format that this server does not read."""
    text = (
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )
    return UnsupportedMediaType(
        _status(415, "UnsupportedMediaType", f"{text}; {hint}" if hint else text)
    )


def not_acceptable(accepted: Sequence[str], hint: str = "") -> ApiError:
    """The client accepts no format that this server writes."""
    text = "only the following media types are accepted: " + ", ".join(accepted)
    return ApiError(_status(406, "NotAcceptable", f"{text}; {hint}" if hint else text))


def too_many_requests(message: str) -> TooManyRequests:
    """Retry a second later."""
    return TooManyRequests(_status(429, "TooManyRequests", message, retry_after=1))


def over_budget(message: str, reason: str, retry_after: int = 0) -> TooManyRequests:
    """A disruption budget does not allow it now."""
    causes = (StatusCause(reason="DisruptionBudget", message=reason),)
    return TooManyRequests(
        _status(429, "TooManyRequests", message, causes=causes, retry_after=retry_after)
    )


def over_budgets(message: str, reasons: Sequence[str]) -> TooManyRequests:
    """Several disruption budgets do not allow it now; the message has the causes, too."""
    message = " ".join((message, *(f"{reason.rstrip('.')}." for reason in reasons)))
    causes = tuple(StatusCause(reason="DisruptionBudget", message=reason) for reason in reasons)
    return TooManyRequests(_status(429, "TooManyRequests", message, causes=causes))


def budget_conflicts(budget: str, retry_after: int) -> ServerError:
    """A budget changes too often for this eviction to update it."""
    text = f'couldn\'t update PodDisruptionBudget "{budget}" due to conflicts'
    return ServerError(_status(504, "Timeout", f"Timeout: {text}", retry_after=retry_after))


def forbidden_request(message: str) -> Forbidden:
    """Forbidden, without a resource."""
    return Forbidden(_status(403, "Forbidden", message))


def internal(message: str) -> ServerError:
    """An error of this server, or of a webhook it had to call."""
    text = f"Internal error occurred: {message}"
    return ServerError(_status(500, "InternalError", text, causes=(StatusCause(message=message),)))


def not_implemented(message: str) -> ServerError:
    """A function that the embedded cluster does not have."""
    return ServerError(_status(501, "NotImplemented", message))


def unavailable(message: str) -> ServerError:
    """The server cannot process the request now."""
    return ServerError(_status(503, "ServiceUnavailable", message))


def version_too_large(version: int, current: int) -> ServerError:
    """A resourceVersion that does not exist yet."""
    text = f"Too large resource version: {version}, current: {current}"
    cause = StatusCause(reason="ResourceVersionTooLarge", message="Too large resource version")
    return ServerError(_status(504, "Timeout", f"Timeout: {text}", causes=(cause,), retry_after=1))


def invalid_options(kind: str, errors: Sequence[StatusCause]) -> Invalid:
    """Invalid parameters of a request."""
    return field_errors.new_invalid(Resource("meta.k8s.io", "v1", kind, ""), "", errors)


def invalid_patch(value: str, reason: str) -> Invalid:
    """A patch whose result is not an object of its kind."""
    error = field_errors.invalid("patch", value, reason)
    return Invalid(
        _status(422, "Invalid", f' "" is invalid: patch: {error.message}', causes=(error,))
    )


def patch_not_applicable() -> Invalid:
    """A JSON patch that does not fit the object, or whose test failed."""
    message = "the server rejected our request due to an error in our request"
    return Invalid(_status(422, "Invalid", message, details=StatusDetails()))


def server_error(message: str) -> ServerError:
    """A 500 without a reason, where a real server gives none."""
    return ServerError(_status(500, "", message))


def apply_uid_mismatch(resource: Resource, name: str, uid: str) -> ApiError:
    """An apply that names the uid of an object that does not exist."""
    reason = (
        f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
    )
    return conflict(resource, name, reason)


def kind_mismatch(resource: Resource, kind: str, name: str) -> Invalid:
    """A custom object that states another kind; a real server then names that kind."""
    error = field_errors.invalid("kind", kind, f"must be {resource.kind}")
    stated = Resource(resource.group, resource.version, kind, "")
    return field_errors.new_invalid(stated, name, [error])


def invalid_scale(name: str, error: StatusCause) -> Invalid:
    """An invalid Scale."""
    return field_errors.new_invalid(Resource("autoscaling", "v1", "Scale", ""), name, [error])


def invalid_token_request(errors: Sequence[StatusCause]) -> Invalid:
    """An invalid TokenRequest."""
    resource = Resource("authentication.k8s.io", "v1", "TokenRequest", "")
    return field_errors.new_invalid(resource, "", errors)
