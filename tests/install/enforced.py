"""Printed policies in force on an embedded server, which itself only stores them.

Each validating policy is evaluated with the CEL of this repository, as by a real server's plugin:
rules, the binding's namespaces, match conditions, validations.
"""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.api.meta import LabelSelector
from zonewise.api.values import selector
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.embedded.apiserver.admission.webhook_review import build_request
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.embedded.machinery.cel.match_conditions import compile_condition, compile_conditions
from zonewise.embedded.machinery.cel.values import EvaluationError
from zonewise.install.installation import Obj


def enforce(server: ApiServer, objects: list[Obj]) -> None:
    """Let the server enforce the policies among some manifests."""
    bindings = {
        item["spec"]["policyName"]: item["spec"]
        for item in objects
        if item["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    for item in objects:
        if item["kind"] == "ValidatingAdmissionPolicy":
            binding = bindings[item["metadata"]["name"]]
            server.admission.add(Policy(server, item["spec"], binding))


class Policy:
    """One policy as an admission plugin."""

    def __init__(self, server: ApiServer, spec: Obj, binding: Obj) -> None:
        assert (spec["failurePolicy"], binding["validationActions"]) == ("Fail", ["Deny"])
        (self._rule,) = spec["matchConstraints"]["resourceRules"]
        self._conditions = compile_conditions(spec["matchConditions"])
        self._validations = [
            (compile_condition(each["expression"]), each["message"]) for each in spec["validations"]
        ]
        matched = binding.get("matchResources", {}).get("namespaceSelector", {})
        self._namespaces = selector.from_object(msgspec.convert(matched, LabelSelector))
        self._server = server

    def __call__(self, attributes: Attributes) -> None:
        """Refuse a request that the policy does not allow."""
        resource = attributes.served.kind.resource
        plural = "/".join(filter(None, (resource.plural, attributes.subresource)))
        if (
            plural not in self._rule["resources"]
            or resource.group not in self._rule["apiGroups"]
            or resource.version not in self._rule["apiVersions"]
            or attributes.operation not in self._rule["operations"]
            or not self._in_namespace(attributes)
        ):
            return
        request = build_request(attributes, attributes.served, "uid")
        variables: dict[str, Any] = {
            "request": request,
            "object": attributes.obj,
            "oldObject": attributes.old,
            "namespaceObject": None,
        }
        if not self._conditions.evaluate(
            request=request, object=attributes.obj, old_object=attributes.old
        ):
            return
        for program, message in self._validations:
            try:
                passed, _ = program.evaluate(variables)
            except EvaluationError as error:
                raise AssertionError(f"{program.text}: {error}") from None
            if passed is not True:
                raise status_errors.forbidden(resource, attributes.display_name, message)

    def _in_namespace(self, attributes: Attributes) -> bool:
        if not attributes.namespace:
            return True
        entry = self._server.state.latest("/namespaces", "", attributes.namespace)
        assert entry is not None
        return self._namespaces.matches(dict(entry.labels))
