"""Services that are refused on write."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.explain.dumps import AUTO, service

from zonewise.runtime.webhook.admission import AdmissionRequest, Allowed, Denied
from zonewise.webhook.program import validate_service

WRONG = {"service.kubernetes.io/topology-mode": "AUTO"}


def request(new: dict[str, Any] | None, old: dict[str, Any] | None = None) -> AdmissionRequest:
    """The request of an API server."""
    return AdmissionRequest(
        uid="1",
        name="web",
        namespace="default",
        operation="UPDATE" if old else "CREATE",
        object=msgspec.Raw(msgspec.json.encode(new)),
        old_object=msgspec.Raw(msgspec.json.encode(old)),
    )


async def test_an_unknown_mode() -> None:
    """An unknown mode is refused with the words the API server itself would use, unless it was
    there before.
    """
    answer = await validate_service(request(service(annotations=WRONG)))
    assert isinstance(answer, Denied)
    assert (answer.code, answer.status) == (422, "Invalid")
    assert str(answer.why) == (
        'Service "web" is invalid: metadata.annotations[service.kubernetes.io/topology-mode]: '
        'Unsupported value: "AUTO": supported values: "Auto", "Disabled", "zonewise.io/shared",'
        ' "zonewise.io/weighted"'
    )
    again = request(service(annotations=WRONG | {"a": "b"}), service(annotations=WRONG))
    assert isinstance(await validate_service(again), Allowed)


async def test_invalid_topology_keys() -> None:
    """Keys in an annotation are judged as those in the field, all mistakes at once."""
    key = "zonewise.io/topology-keys"
    answer = await validate_service(request(service(annotations={key: "*, a b"})))
    assert isinstance(answer, Denied)
    assert (answer.code, answer.status) == (422, "Invalid")
    assert str(answer.why).count(f"metadata.annotations[{key}]: Invalid value") == 2
    right = {key: "kubernetes.io/hostname, example.com/rack, *"}
    assert isinstance(await validate_service(request(service(annotations=right))), Allowed)


async def test_everything_else() -> None:
    """Valid Services, status updates and deletions are allowed."""
    assert isinstance(await validate_service(request(service(annotations=AUTO))), Allowed)
    assert isinstance(await validate_service(request(None, service())), Allowed)
    status = msgspec.structs.replace(
        request(service(annotations=WRONG), service()), sub_resource="status"
    )
    assert isinstance(await validate_service(status), Allowed)
