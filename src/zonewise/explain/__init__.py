"""Reasons in words: a snapshot becomes a report. Pure."""

from zonewise.explain.budgets import BudgetReport, Disruption, DomainRow, PodReport
from zonewise.explain.cluster import DEFAULT_NAMESPACE, ReportedCluster, ReportSettings, key_of
from zonewise.explain.disruption_pages import disruption_page, disruptions_page
from zonewise.explain.name import NameClient, NameReport, explain_name, name_page
from zonewise.explain.page import service_page, services_page
from zonewise.explain.report import Effect, FamilyReport, ServiceReport
from zonewise.explain.service import explain_service
from zonewise.explain.volumes import (
    VolumeCluster,
    VolumeReport,
    explain_claim,
    explain_volume,
    volume_page,
)

__all__ = [
    "DEFAULT_NAMESPACE",
    "BudgetReport",
    "Disruption",
    "DomainRow",
    "Effect",
    "FamilyReport",
    "NameClient",
    "NameReport",
    "PodReport",
    "ReportSettings",
    "ReportedCluster",
    "ServiceReport",
    "VolumeCluster",
    "VolumeReport",
    "disruption_page",
    "disruptions_page",
    "explain_claim",
    "explain_name",
    "explain_service",
    "explain_volume",
    "key_of",
    "name_page",
    "service_page",
    "services_page",
    "volume_page",
]
