"""Webhook configurations: which to call, for what, and the failure policy."""

from __future__ import annotations

import base64
from urllib.parse import SplitResult, urlsplit

from cryptography import x509 as certificates

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.selectors import validate_label_selector

REVIEWS = ("v1", "v1beta1")
EFFECTS = ("None", "NoneOnDryRun")
OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
SCOPES = ("*", "Cluster", "Namespaced")
MAX_TIMEOUT = 30
CONDITION_LIMIT = 64
URL_FORM = "; desired format: https://host[/path]"


class WebhookRules(Rules):
    """The rules of both kinds of webhook configurations."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        seen: set[str] = set()
        for webhook in obj["webhooks"].each():
            _validate_webhook(webhook)
            reviews = webhook["admissionReviewVersions"]
            validate_review_versions(reviews, "must specify one of " + ", ".join(REVIEWS))
            webhook["name"].optional().unique(seen)


def _validate_webhook(webhook: Field) -> None:
    name = webhook["name"]
    if name.required().dns_subdomain() and name.value.count(".") < 2:
        name.invalid("should be a domain with at least three segments separated by dots")
    for rule in webhook["rules"].each():
        _validate_rule(rule)
    webhook["failurePolicy"].enum(("Fail", "Ignore"))
    webhook["matchPolicy"].enum(("Equivalent", "Exact"))
    webhook["reinvocationPolicy"].enum(("IfNeeded", "Never"))
    webhook["sideEffects"].present().enum(EFFECTS)
    webhook["timeoutSeconds"].between(
        1, MAX_TIMEOUT, f"the timeout value must be between 1 and {MAX_TIMEOUT} seconds"
    )
    validate_label_selector(webhook["namespaceSelector"])
    validate_label_selector(webhook["objectSelector"])
    validate_client_config(webhook["clientConfig"])
    _validate_match_conditions(webhook["matchConditions"])


def validate_review_versions(versions: Field, detail: str = "") -> None:
    """The versions of reviews that a webhook understands; ``detail`` is the error for none."""
    if not versions.required(detail):
        return
    for index, version in enumerate(versions.each()):
        if version.value in versions.value[:index]:
            version.invalid("duplicate version")
        else:
            version.dns_1035_label()
    if not set(versions.value) & set(REVIEWS):
        versions.invalid("must include at least one of " + ", ".join(REVIEWS))


def _validate_rule(rule: Field) -> None:
    _validate_wildcard(rule["apiGroups"], "values")
    _validate_wildcard(rule["apiVersions"], "values")
    for version in rule["apiVersions"].each():
        version.required()
    _validate_resources(rule["resources"])
    _validate_wildcard(rule["operations"], "operations")
    for operation in rule["operations"].each():
        operation.enum(OPERATIONS)
    rule["scope"].enum(SCOPES)


def _validate_wildcard(values: Field, what: str) -> None:
    if values.required() and len(values.value) > 1 and "*" in values.value:
        values.invalid(f"if '*' is present, must not specify other {what}")


def _validate_resources(resources: Field) -> None:
    if not resources.required():
        return
    with_all_subresources: set[str] = set()
    of_all_resources: set[str] = set()
    for item in resources.each():
        if not item.required():
            continue
        resource, slash, subresource = item.value.partition("/")
        if slash and resource in with_all_subresources:
            item.invalid(f"if '{resource}/*' is present, must not specify {item.value}")
        if slash and subresource in of_all_resources:
            item.invalid(f"if '*/{subresource}' is present, must not specify {item.value}")
        if subresource == "*":
            with_all_subresources.add(resource)
        if slash and resource == "*":
            of_all_resources.add(subresource)
    if len(resources.value) > 1 and "*/*" in resources.value:
        resources.invalid("if '*/*' is present, must not specify other resources")
    if "*" in resources.value and any("/" not in text and text != "*" for text in resources.value):
        resources.invalid(
            "if '*' is present, must not specify other resources without subresources"
        )


def validate_client_config(config: Field, *, swapped: bool = False) -> None:
    """Where a webhook is.

    ``swapped``: the missing name of a Service is reported as a missing namespace and the other way
    round, as a real server does for conversion webhooks.
    """
    url, service = config["url"], config["service"]
    if (url.value is None) == (service.value is None):
        config.missing("exactly one of url or service is required")
    elif url.value is not None:
        _validate_url(url)
    else:
        for key, other in (("name", "namespace"), ("namespace", "name")):
            service[other if swapped else key].named(key).required()
        service["port"].between(
            1, 65535, "port is not valid: must be between 1 and 65535, inclusive"
        )
        if service["path"].value not in {None, "", "/"}:
            _validate_path(service["path"])


def validate_ca_bundle(bundle: Field) -> None:
    """The authorities that a webhook's certificate is verified with."""
    try:
        certificates.load_pem_x509_certificates(base64.b64decode(bundle.value, validate=True))
    except ValueError:
        bundle.invalid("unable to load root certificates: unable to parse bytes as PEM block")


def _validate_url(field: Field) -> None:
    text = field.value
    try:
        url = urlsplit(text)
    except ValueError:
        url = SplitResult("", "", "", "", "")
    if not url.scheme and text.startswith(":"):
        detail = f'url must be a valid URL: parse "{text}": missing protocol scheme'
        field.missing(f"{detail}{URL_FORM}")
        return
    if url.scheme != "https":
        field.invalid(f"'https' is the only allowed URL scheme{URL_FORM}", url.scheme)
    user, at, host = url.netloc.rpartition("@")
    if not host:
        field.invalid(f"host must be specified{URL_FORM}", host)
    if at:
        field.invalid("user information is not permitted in the URL", user)
    if url.fragment:
        field.invalid("fragments are not permitted in the URL", url.fragment)
    if url.query:
        field.invalid("query parameters are not permitted in the URL", url.query)


def _validate_path(path: Field) -> None:
    text = path.value
    if text == "//":
        path.invalid("segment[0] may not be empty")
        return
    if not text.startswith("/"):
        path.invalid("must start with a '/'")
    for index, segment in enumerate(text[1:].removesuffix("/").split("/")):
        if not segment:
            path.invalid(f"segment[{index}] may not be empty")
            continue
        for detail in names.subdomain_errors(segment):
            path.invalid(f"segment[{index}]: {detail}")


def _validate_match_conditions(conditions: Field) -> None:
    """The expressions that decide whether a webhook is called at all."""
    if not conditions.max_items(CONDITION_LIMIT):
        return
    seen: set[str] = set()
    for condition in conditions.each():
        expression = condition["expression"].holding(condition.get("expression", "").value.strip())
        if expression.required():
            expression.invalid_if(condition_error(expression.value))
        name = condition["name"]
        name.required().qualified_name()
        name.optional().unique(seen)


def condition_error(text: str) -> str:
    """Why an expression is not a valid match condition; empty if it is valid.

    One that uses ``authorizer`` is accepted, as by a real server, and fails when it is evaluated.
    """
    # Loading the language is slow, and most servers never get an expression.
    from zonewise.embedded.machinery.cel.match_conditions import AuthorizerUsed, compile_condition
    from zonewise.embedded.machinery.cel.syntax import CompileError

    try:
        compile_condition(text)
    except AuthorizerUsed:
        return ""
    except CompileError as error:
        return str(error)
    return ""
