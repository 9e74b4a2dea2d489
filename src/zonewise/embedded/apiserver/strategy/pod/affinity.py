"""Where a pod may be scheduled: affinity, tolerations, spreading."""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.selectors import expression_faults, selector_faults

EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
INCLUSION = ("Honor", "Ignore")
PATIENCE = tuple(
    {
        "key": f"node.kubernetes.io/{trouble}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for trouble in ("not-ready", "unreachable")
)
"""What admission adds to nearly every pod, and is known to be valid."""


def affinity_faults(affinity: Obj, path: str) -> Faults:
    """What is wrong with a pod's affinity."""
    found: Faults = []
    node = affinity.get("nodeAffinity")
    if node is not None:
        found += _node_affinity(node, f"{path}.nodeAffinity")
    for key in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(key)
        if terms is not None:
            found += _pod_affinity(terms, f"{path}.{key}")
    return found


def _node_affinity(terms: Obj, path: str) -> Faults:
    found: Faults = []
    if terms.get(REQUIRED) is not None:
        found += node_selector_faults(terms[REQUIRED], f"{path}.{REQUIRED}")
    for index, term in enumerate(terms.get(PREFERRED) or ()):
        at = f"{path}.{PREFERRED}[{index}]"
        found += _weight(term, at)
        found += term_faults(term.get("preference") or {}, f"{at}.preference", check_values=False)
    return found


def node_selector_faults(selector: Obj, path: str) -> Faults:
    """What is wrong with a node selector."""
    terms = selector.get("nodeSelectorTerms") or ()
    if not terms:
        text = "must have at least one node selector term"
        return [field_errors.required(f"{path}.nodeSelectorTerms", text)]
    found: Faults = []
    for index, term in enumerate(terms):
        found += term_faults(term, f"{path}.nodeSelectorTerms[{index}]")
    return found


def term_faults(term: Obj, path: str, *, check_values: bool = True) -> Faults:
    """What is wrong with one term of a node selector."""
    found: Faults = []
    for index, one in enumerate(term.get("matchExpressions") or ()):
        place = f"{path}.matchExpressions[{index}]"
        found += expression_faults(one, place, of_nodes=True, check_values=check_values)
    for index, one in enumerate(term.get("matchFields") or ()):
        found += _node_field(one, f"{path}.matchFields[{index}]")
    return found


def _node_field(one: Obj, path: str) -> Faults:
    found: Faults = []
    operator, values = one.get("operator", ""), one.get("values") or ()
    if operator not in {"In", "NotIn"}:
        text = "not a valid selector operator"
        found.append(field_errors.invalid(f"{path}.operator", operator, text))
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        found.append(field_errors.required(f"{path}.values", text))
    key = one.get("key", "")
    if key != "metadata.name":
        found.append(field_errors.invalid(f"{path}.key", key, "not a valid field selector key"))
        return found
    for index, value in enumerate(values):
        found += [
            field_errors.invalid(f"{path}.values[{index}]", value, text)
            for text in names.subdomain(value)
        ]
    return found


def _weight(term: Obj, path: str) -> Faults:
    weight = term.get("weight", 0)
    if 0 < weight <= 100:
        return []
    return [field_errors.invalid(f"{path}.weight", weight, "must be in the range 1-100")]


def _pod_affinity(terms: Obj, path: str) -> Faults:
    found: Faults = []
    for index, term in enumerate(terms.get(REQUIRED) or ()):
        found += _pod_term(term, f"{path}.{REQUIRED}[{index}]")
    for index, weighted in enumerate(terms.get(PREFERRED) or ()):
        at = f"{path}.{PREFERRED}[{index}]"
        found += _weight(weighted, at)
        found += _pod_term(weighted.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")
    return found


def _pod_term(term: Obj, path: str) -> Faults:
    found = selector_faults(term.get("labelSelector"), f"{path}.labelSelector")
    found += selector_faults(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in term.get("namespaces") or ():
        found += [
            field_errors.invalid(f"{path}.namespace", name, text) for text in names.label(name)
        ]
    found += _label_keys(term, path)
    key = term.get("topologyKey", "")
    if not key:
        found.append(field_errors.required(f"{path}.topologyKey", "can not be empty"))
    found += [
        field_errors.invalid(f"{path}.topologyKey", key, text)
        for text in metadata.qualified_name(key)
    ]
    return found


def _label_keys(term: Obj, path: str) -> Faults:
    """``matchLabelKeys`` and ``mismatchLabelKeys`` need a selector and may not contradict it."""
    match, mismatch = term.get("matchLabelKeys") or (), term.get("mismatchLabelKeys") or ()
    if not match and not mismatch:
        return []
    found: Faults = []
    selector = term.get("labelSelector")
    for name, keys in (("matchLabelKeys", match), ("mismatchLabelKeys", mismatch)):
        if not keys:
            continue
        if selector is None:
            text = "must not be specified when labelSelector is not set"
            found.append(field_errors.forbidden(f"{path}.{name}", text))
            continue
        for index, key in enumerate(keys):
            found += [
                field_errors.invalid(f"{path}.{name}[{index}]", key, text)
                for text in metadata.qualified_name(key)
            ]
    if selector is not None:
        # The server itself adds an expression per key, so only a second mention is a clash.
        seen = set(selector.get("matchLabels") or ())
        places = {key: index for index, key in enumerate(match)}
        for one in selector.get("matchExpressions") or ():
            key = one.get("key", "")
            if key in places and key in seen:
                text = "exists in both matchLabelKeys and labelSelector"
                found.append(field_errors.invalid(f"{path}[{places[key]}]", key, text))
            seen.add(key)
    for index, key in enumerate(match):
        if key in mismatch:
            text = "exists in both matchLabelKeys and mismatchLabelKeys"
            found.append(field_errors.invalid(f"{path}.matchLabelKeys[{index}]", key, text))
    return found


def toleration_faults(tolerations: list[Obj], path: str) -> Faults:
    """What is wrong with a pod's tolerations."""
    found: Faults = []
    for index, one in enumerate(tolerations):
        if one in PATIENCE:
            continue
        key, operator = one.get("key", ""), one.get("operator", "")
        effect, value = one.get("effect", ""), one.get("value", "")
        at = f"{path}[{index}]"
        if key:
            found += [
                field_errors.invalid(f"{at}.key", key, text)
                for text in metadata.qualified_name(key)
            ]
        elif operator != "Exists":
            text = "operator must be Exists when `key` is empty"
            found.append(field_errors.invalid(f"{at}.operator", operator, text))
        if one.get("tolerationSeconds") is not None and effect != "NoExecute":
            text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            found.append(field_errors.invalid(f"{at}.effect", effect, text))
        if operator == "Exists":
            if value:
                text = "value must be empty when `operator` is 'Exists'"
                found.append(field_errors.invalid(f"{at}.operator", value, text))
        elif operator in {"", "Equal"}:
            sentences = metadata.label_value(value)
            if sentences:
                found.append(field_errors.invalid(f"{at}.operator", value, ";".join(sentences)))
        else:
            found.append(field_errors.unsupported(f"{at}.operator", operator, ("Equal", "Exists")))
        if effect and effect not in EFFECTS:
            found.append(field_errors.unsupported(f"{at}.effect", effect, EFFECTS))
    return found


def spread_faults(constraints: list[Obj], path: str) -> Faults:
    """What is wrong with topology spread constraints."""
    found: Faults = []
    for index, one in enumerate(constraints):
        at = f"{path}[{index}]"
        skew, action = one.get("maxSkew", 0), one.get("whenUnsatisfiable", "")
        if skew <= 0:
            found.append(field_errors.invalid(f"{at}.maxSkew", skew, "must be greater than 0"))
        key = one.get("topologyKey", "")
        if not key:
            found.append(field_errors.required(f"{at}.topologyKey", "can not be empty"))
        if action not in ACTIONS:
            found.append(field_errors.unsupported(f"{at}.whenUnsatisfiable", action, ACTIONS))
        for other in constraints[index + 1 :]:
            if (other.get("topologyKey", ""), other.get("whenUnsatisfiable", "")) == (key, action):
                field = f"{at}.{{topologyKey, whenUnsatisfiable}}"
                found.append(field_errors.duplicate(field, f"{{{key}, {action}}}"))
                break
        domains = one.get("minDomains")
        if domains is not None:
            if domains <= 0:
                found.append(
                    field_errors.invalid(f"{at}.minDomains", domains, "must be greater than 0")
                )
            if action != "DoNotSchedule":
                text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                found.append(field_errors.invalid(f"{at}.minDomains", domains, text))
        for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            policy = one.get(name)
            if policy is not None and policy not in INCLUSION:
                found.append(field_errors.unsupported(f"{at}.{name}", policy, INCLUSION))
        found += _label_keys(one, at)
        found += selector_faults(one.get("labelSelector"), f"{at}.labelSelector")
    return found


def merge_label_keys(spec: Obj, labels: dict[str, str]) -> None:
    """Write the values of ``matchLabelKeys`` and their opposites into the selectors."""
    for one in spec.get("topologySpreadConstraints") or ():
        _merge(one, labels)
    affinity = spec.get("affinity") or {}
    for key in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(key) or {}
        for weighted in terms.get(PREFERRED) or ():
            _merge(weighted.get("podAffinityTerm") or {}, labels)
        for term in terms.get(REQUIRED) or ():
            _merge(term, labels)


def _merge(term: Obj, labels: dict[str, str]) -> None:
    selector = term.get("labelSelector")
    if selector is None:
        return
    for name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(name) or ():
            if key in labels:
                selector.setdefault("matchExpressions", []).append(
                    {"key": key, "operator": operator, "values": [labels[key]]}
                )
