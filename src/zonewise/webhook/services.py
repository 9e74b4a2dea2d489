"""Refuses Services whose hint mode or topology keys are not valid."""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.api.objects.core import Service
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Allowed, Denied
from zonewise.traffic import service_faults


async def validate_service(request: AdmissionRequest) -> AdmissionAnswer:
    """Answer for one Service that is about to be written."""
    service = request.new(Service)
    if service is None or request.sub_resource:
        return Allowed()
    found = service_faults(service, request.old(Service))
    if not found:
        return Allowed()
    refusal = field_errors.refusal(Service.resource, request.name, found)
    return Denied(str(refusal), code=422, status="Invalid")
