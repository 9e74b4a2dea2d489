"""A Grafana dashboard, in a ConfigMap that Grafana's sidecar finds by its label."""

from __future__ import annotations

import json

from zonewise.install.installation import LEASE, NAME, Installation, Obj

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT = 12, 8

_PANELS = (
    (
        "Services with and without hints",
        "short",
        "sum by (state) (zonewise_hints_services)",
        "{{state}}",
    ),
    (
        "Why Services have no hints",
        "short",
        'sum by (reason) (zonewise_hints_services{state="unhinted"})',
        "{{reason}}",
    ),
    (
        "EndpointSlices written",
        "ops",
        "sum by (operation) (rate(endpoint_slice_controller_changes_total[5m]))",
        "{{operation}}",
    ),
    (
        "Syncs of Services",
        "ops",
        "sum by (result) (rate(endpoint_slice_controller_syncs_total[5m]))",
        "{{result}}",
    ),
    (
        "Failed syncs (an alert above 10 %)",
        "percentunit",
        'sum(rate(endpoint_slice_controller_syncs_total{result=~"stale|error"}[15m]))'
        " / sum(rate(endpoint_slice_controller_syncs_total[15m]))",
        "failed",
    ),
    (
        "Webhook calls",
        "ops",
        "sum by (path, outcome) (rate(zonewise_admission_total[5m]))",
        "{{path}} {{outcome}}",
    ),
    (
        "Duration of webhook calls (99th percentile)",
        "s",
        "histogram_quantile(0.99, sum by (le, path)"
        " (rate(zonewise_admission_duration_seconds_bucket[5m])))",
        "{{path}}",
    ),
    (
        "Seconds since the last byte of each watch",
        "s",
        "max by (resource) (zonewise_watch_last_byte_age_seconds)",
        "{{resource}}",
    ),
    ("Who leads", "short", f'leader_election_master_status{{name="{LEASE}"}}', "{{pod}}"),
)
"""Title, unit, query and legend."""


def make_page() -> Obj:
    """The dashboard."""
    return {
        "uid": NAME,
        "title": "Zonewise",
        "tags": [NAME, "kubernetes"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": [_make_panel(number, *panel) for number, panel in enumerate(_PANELS)],
    }


def _make_panel(number: int, title: str, unit: str, query: str, legend: str) -> Obj:
    row, column = divmod(number, 2)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": query, "legendFormat": legend}],
    }


def render_dashboard(installation: Installation) -> list[Obj]:
    """The ConfigMap, if it was requested."""
    if not installation.dashboard:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": installation.metadata(f"{NAME}-dashboard", {"grafana_dashboard": "1"}),
            "data": {"zonewise.json": json.dumps(make_page(), indent=1)},
        }
    ]
