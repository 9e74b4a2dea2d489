"""Reasons in words: a snapshot becomes a report. Pure."""

from zonewise.explain.cluster import DEFAULT_NAMESPACE, Cluster, Settings, key_of
from zonewise.explain.page import service_page, services_page
from zonewise.explain.report import Effect, FamilyReport, ServiceReport
from zonewise.explain.service import explain_service

__all__ = [
    "DEFAULT_NAMESPACE",
    "Cluster",
    "Effect",
    "FamilyReport",
    "ServiceReport",
    "Settings",
    "explain_service",
    "key_of",
    "service_page",
    "services_page",
]
