"""AdmissionReview v1 in both directions."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.webhook.reviews import SERVICE, review

from zonewise.api.errors import ParseError
from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.runtime.webhook.admission import Allowed, Denied, decode, encode


def test_a_request_is_typed() -> None:
    """Names, user, objects and dry run are read; unknown fields are ignored."""
    request = decode(
        review(
            kind={"group": "", "version": "v1", "kind": "Service"},
            resource={"group": "", "version": "v1", "resource": "services"},
            subResource="status",
            name="web",
            namespace="shop",
            userInfo={"username": "eve", "groups": ["a"], "extra": {"k": ["v"]}},
            object=SERVICE,
            oldObject=None,
            dryRun=True,
            somethingNew={"x": 1},
        )
    )
    service = request.new(Service)
    assert service is not None and service.key == ("shop", "web")
    assert request.old(Service) is None and request.plain() == SERVICE
    assert request.user_info.username == "eve" and request.dry_run
    assert (request.resource.resource, request.sub_resource) == ("services", "status")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not JSON"),
        (b"[]", "Review"),
        (b"{}", "of no kind of no version"),
        (b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}', "v1beta1"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "no request"),
        (review(uid=""), "no uid"),
        (review(operation=7), "operation"),
        (b"[" * 100_000, "not JSON|nested"),
    ],
)
def test_anything_else_is_refused(body: bytes, sentence: str) -> None:
    """Input that is not an AdmissionReview of version 1 is a parse error that says what it is."""
    with pytest.raises(ParseError, match=sentence):
        decode(body)


def answered(answer: Allowed | Denied) -> dict[str, Any]:
    body = json.loads(encode(decode(review()), answer))
    assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = body["response"]
    assert response.pop("uid") == "u-1"
    return response


def test_a_plain_yes_has_no_other_fields() -> None:
    """The shortest answer has the uid and ``allowed``."""
    assert answered(Allowed()) == {"allowed": True}


def test_a_patch_is_base64_json() -> None:
    """Operations are encoded as a base64 JSON patch with its type."""
    operations = [{"op": "add", "path": "/metadata/labels", "value": {"ü": "é"}}]
    response = answered(Allowed(patch=operations, warnings=["look"], audit={"k": "v"}))
    assert json.loads(base64.b64decode(response.pop("patch"))) == operations
    assert response == {
        "allowed": True,
        "patchType": "JSONPatch",
        "warnings": ["look"],
        "auditAnnotations": {"k": "v"},
    }


def test_a_no_carries_its_reason() -> None:
    """The message has the reason's sentences; code and status are for programs."""
    why = Reason(code="BudgetSpent", message="2 of 2 pods are down", fix="wait for one of them")
    response = answered(Denied(why, code=429, status="TooManyRequests", retry_after=10))
    assert response == {
        "allowed": False,
        "status": {
            "code": 429,
            "reason": "TooManyRequests",
            "message": "2 of 2 pods are down. wait for one of them.",
            "details": {"retryAfterSeconds": 10},
        },
    }
    assert answered(Denied("no"))["status"] == {"code": 403, "reason": "Forbidden", "message": "no"}


@given(st.lists(st.text(max_size=600), max_size=60))
def test_warnings_stay_within_what_servers_pass_on(warnings: list[str]) -> None:
    """Each warning is one bounded line, all together are bounded, and short ones survive."""
    lines = answered(Allowed(warnings=warnings)).get("warnings", [])
    assert all(0 < len(line) <= 256 and "\n" not in line for line in lines)
    assert sum(len(line.encode()) for line in lines) <= 4096


def test_a_long_refusal_is_cut() -> None:
    """The length of a refusal is bounded, however long the list of errors is."""
    assert len(answered(Denied("x" * 10**6))["status"]["message"]) == 4096


@pytest.mark.parametrize(
    "names",
    [
        {"namespace": "x" * 60_000},
        {"namespace": "no namespace"},
        {"namespace": "a/b"},
        {"name": "x" * 254},
        {"name": "../nodes"},
    ],
)
def test_names_that_no_object_has_are_refused(names: dict[str, str]) -> None:
    """A review with an invalid namespace or name is refused, and the error does not repeat it."""
    with pytest.raises(ParseError) as raised:
        decode(review(**names))
    assert len(str(raised.value)) < 100
