"""Webhook configurations: which to call, for what, and the failure policy."""

from __future__ import annotations

import base64
from urllib.parse import SplitResult, urlsplit

from cryptography import x509 as certificates

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.adapters import selector_faults
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext
from zonewise.embedded.apiserver.strategy.expressions import condition_fault

REVIEWS = ("v1", "v1beta1")
EFFECTS = ("None", "NoneOnDryRun")
OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
SCOPES = ("*", "Cluster", "Namespaced")
LONGEST_WAIT = 30
MOST_CONDITIONS = 64
FORM = "; desired format: https://host[/path]"


class HookRules(LegacyRules):
    """The rules of both kinds of webhook configurations."""

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a configuration."""
        found: Faults = []
        seen: set[str] = set()
        for index, hook in enumerate(obj.get("webhooks") or ()):
            path = f"webhooks[{index}]"
            name = hook.get("name", "")
            found += _hook_faults(hook, path) + _version_faults(hook, path)
            if name and name in seen:
                found.append(field_errors.duplicate(f"{path}.name", name))
            seen.add(name)
        return found


def _hook_faults(hook: Obj, path: str) -> Faults:
    found = _name_faults(hook.get("name", ""), f"{path}.name")
    for index, rule in enumerate(hook.get("rules") or ()):
        found += _rule_faults(rule, f"{path}.rules[{index}]")
    for key, known in (
        ("failurePolicy", ("Fail", "Ignore")),
        ("matchPolicy", ("Equivalent", "Exact")),
        ("reinvocationPolicy", ("IfNeeded", "Never")),
    ):
        value = hook.get(key)
        if value is not None and value not in known:
            found.append(field_errors.unsupported(f"{path}.{key}", value, known))
    effects = hook.get("sideEffects")
    if effects is None:
        found.append(field_errors.required(f"{path}.sideEffects"))
    elif effects not in EFFECTS:
        found.append(field_errors.unsupported(f"{path}.sideEffects", effects, EFFECTS))
    wait = hook.get("timeoutSeconds")
    if wait is not None and not 1 <= wait <= LONGEST_WAIT:
        text = f"the timeout value must be between 1 and {LONGEST_WAIT} seconds"
        found.append(field_errors.invalid(f"{path}.timeoutSeconds", wait, text))
    for key in ("namespaceSelector", "objectSelector"):
        found += selector_faults(hook.get(key), f"{path}.{key}")
    found += client_faults(hook.get("clientConfig") or {}, f"{path}.clientConfig")
    return found + condition_faults(hook.get("matchConditions") or [], f"{path}.matchConditions")


def _name_faults(name: str, path: str) -> Faults:
    if not name:
        return [field_errors.required(path)]
    texts = names.subdomain_errors(name)
    if not texts and name.count(".") < 2:
        texts = ["should be a domain with at least three segments separated by dots"]
    return [field_errors.invalid(path, name, text) for text in texts]


def _version_faults(hook: Obj, path: str) -> Faults:
    return review_faults(
        hook.get("admissionReviewVersions") or [],
        f"{path}.admissionReviewVersions",
        "must specify one of " + ", ".join(REVIEWS),
    )


def review_faults(versions: list[str], path: str, without: str) -> Faults:
    """What is wrong with the review versions of a webhook; ``without`` is the fault for none."""
    if not versions:
        return [field_errors.required(path, without)]
    found: Faults = []
    for index, version in enumerate(versions):
        at = f"{path}[{index}]"
        if version in versions[:index]:
            found.append(field_errors.invalid(at, version, "duplicate version"))
            continue
        found += [
            field_errors.invalid(at, version, text) for text in names.label_1035_errors(version)
        ]
    if not set(versions) & set(REVIEWS):
        text = "must include at least one of " + ", ".join(REVIEWS)
        found.append(field_errors.invalid(path, versions, text))
    return found


def _rule_faults(rule: Obj, path: str) -> Faults:
    found: Faults = []
    for key in ("apiGroups", "apiVersions"):
        values = rule.get(key) or []
        if not values:
            found.append(field_errors.required(f"{path}.{key}"))
        elif len(values) > 1 and "*" in values:
            text = "if '*' is present, must not specify other values"
            found.append(field_errors.invalid(f"{path}.{key}", values, text))
    found += [
        field_errors.required(f"{path}.apiVersions[{index}]")
        for index, version in enumerate(rule.get("apiVersions") or ())
        if not version
    ]
    found += _resource_faults(rule.get("resources") or [], f"{path}.resources")
    operations = rule.get("operations") or []
    at = f"{path}.operations"
    if not operations:
        found.append(field_errors.required(at))
    elif len(operations) > 1 and "*" in operations:
        text = "if '*' is present, must not specify other operations"
        found.append(field_errors.invalid(at, operations, text))
    found += [
        field_errors.unsupported(f"{at}[{index}]", operation, OPERATIONS)
        for index, operation in enumerate(operations)
        if operation not in OPERATIONS
    ]
    scope = rule.get("scope")
    if scope is not None and scope not in SCOPES:
        found.append(field_errors.unsupported(f"{path}.scope", scope, SCOPES))
    return found


def _resource_faults(resources: list[str], path: str) -> Faults:
    if not resources:
        return [field_errors.required(path)]
    found: Faults = []
    whole: set[str] = set()  # resources all of whose subresources were named before
    below: set[str] = set()  # subresources named for all resources
    for index, text in enumerate(resources):
        at = f"{path}[{index}]"
        if not text:
            found.append(field_errors.required(at))
            continue
        resource, slash, sub = text.partition("/")
        if slash and resource in whole:
            why = f"if '{resource}/*' is present, must not specify {text}"
            found.append(field_errors.invalid(at, text, why))
        if slash and sub in below:
            why = f"if '*/{sub}' is present, must not specify {text}"
            found.append(field_errors.invalid(at, text, why))
        if sub == "*":
            whole.add(resource)
        if slash and resource == "*":
            below.add(sub)
    if len(resources) > 1 and "*/*" in resources:
        text = "if '*/*' is present, must not specify other resources"
        found.append(field_errors.invalid(path, resources, text))
    if "*" in resources and any("/" not in one and one != "*" for one in resources):
        text = "if '*' is present, must not specify other resources without subresources"
        found.append(field_errors.invalid(path, resources, text))
    return found


def client_faults(config: Obj, path: str, *, swapped: bool = False) -> Faults:
    """What is wrong with where a webhook is; ``swapped`` as in ``service_faults``."""
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        return [field_errors.required(path, "exactly one of url or service is required")]
    if url is not None:
        return _url_faults(url, f"{path}.url")
    assert service is not None
    return service_faults(service, f"{path}.service", swapped=swapped)


def bundle_faults(bundle: str, path: str) -> Faults:
    """What is wrong with the authorities a webhook's certificate is checked against."""
    try:
        certificates.load_pem_x509_certificates(base64.b64decode(bundle, validate=True))
    except ValueError:
        text = "unable to load root certificates: unable to parse bytes as PEM block"
        return [field_errors.invalid(path, bundle, text)]
    return []


def _url_faults(text: str, path: str) -> Faults:
    try:
        url = urlsplit(text)
    except ValueError:
        url = SplitResult("", "", "", "", "")
    if not url.scheme and text.startswith(":"):
        why = f'url must be a valid URL: parse "{text}": missing protocol scheme{FORM}'
        return [field_errors.required(path, why)]
    found: Faults = []
    if url.scheme != "https":
        why = f"'https' is the only allowed URL scheme{FORM}"
        found.append(field_errors.invalid(path, url.scheme, why))
    user, at, host = url.netloc.rpartition("@")
    if not host:
        found.append(field_errors.invalid(path, host, f"host must be specified{FORM}"))
    for present, value, what in (
        (at, user, "user information is"),
        (url.fragment, url.fragment, "fragments are"),
        (url.query, url.query, "query parameters are"),
    ):
        if present:
            found.append(field_errors.invalid(path, value, f"{what} not permitted in the URL"))
    return found


def service_faults(service: Obj, path: str, *, swapped: bool = False) -> Faults:
    """What is wrong with a reference to the Service behind a webhook.

    ``swapped``: a missing name is reported as a missing namespace and the other way round, as a
    real server does for conversion webhooks.
    """
    found: Faults = []
    keys = ("namespace", "name") if swapped else ("name", "namespace")
    for key, said in zip(keys, ("name", "namespace"), strict=True):
        if not service.get(key):
            found.append(field_errors.required(f"{path}.{said}"))
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        text = "port is not valid: must be between 1 and 65535, inclusive"
        found.append(field_errors.invalid(f"{path}.port", port, text))
    where = service.get("path")
    if where is not None:
        found += _path_faults(where, f"{path}.path")
    return found


def _path_faults(text: str, path: str) -> Faults:
    if text in {"", "/"}:
        return []
    if text == "//":
        return [field_errors.invalid(path, text, "segment[0] may not be empty")]
    found: Faults = []
    if not text.startswith("/"):
        found.append(field_errors.invalid(path, text, "must start with a '/'"))
    for index, step in enumerate(text[1:].removesuffix("/").split("/")):
        if not step:
            found.append(field_errors.invalid(path, text, f"segment[{index}] may not be empty"))
            continue
        found += [
            field_errors.invalid(path, text, f"segment[{index}]: {why}")
            for why in names.subdomain_errors(step)
        ]
    return found


def condition_faults(conditions: list[Obj], path: str) -> Faults:
    """What is wrong with the expressions that decide whether a webhook is called at all."""
    if len(conditions) > MOST_CONDITIONS:
        return [field_errors.too_many(path, len(conditions), MOST_CONDITIONS)]
    found: Faults = []
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        at = f"{path}[{index}]"
        name, expression = condition.get("name", ""), condition.get("expression", "").strip()
        if not expression:
            found.append(field_errors.required(f"{at}.expression"))
        else:
            why = condition_fault(expression)
            if why:
                found.append(field_errors.invalid(f"{at}.expression", expression, why))
        if not name:
            found.append(field_errors.required(f"{at}.name"))
            continue
        found += [
            field_errors.invalid(f"{at}.name", name, text) for text in metadata.qualified_name(name)
        ]
        if name in seen:
            found.append(field_errors.duplicate(f"{at}.name", name))
        seen.add(name)
    return found
