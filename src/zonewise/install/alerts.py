"""Alerting rules for Prometheus.

As a PrometheusRule where the Prometheus operator runs, else as a ConfigMap with a file of rules.
"""

from __future__ import annotations

import yaml

from zonewise.install.installation import LEASE, NAME, Installation, Obj

STALE_SECONDS = 300
HINTS = "zonewise_hints_services"
SYNCS = "endpoint_slice_controller_syncs_total"
FAILED_SYNCS = 0.1
"""The part of syncs that may fail: the objective of KEP-2433."""


def make_rules(*, budgets: bool = False) -> Obj:
    """The groups of rules; some are about budgets."""
    return {
        "groups": [
            {
                "name": NAME,
                "rules": [
                    _make_rule(
                        "ZonewiseHintsLost",
                        f'sum({HINTS}{{state="unhinted",mode!="Off"}}) >'
                        f' (sum({HINTS}{{state="unhinted",mode!="Off"}} offset 15m) or vector(0))',
                        "10m",
                        "warning",
                        "More Services have lost their hints",
                        "Traffic that could stay in its zone crosses zones. `zonewise explain"
                        " services -A` names them, `zonewise explain service NAME` says why.",
                    ),
                    _make_rule(
                        "ZonewiseSyncsFailing",
                        f'sum(rate({SYNCS}{{result=~"stale|error"}}[15m]))'
                        f" > {FAILED_SYNCS} * sum(rate({SYNCS}[15m]))",
                        "15m",
                        "warning",
                        "More than 10 % of the syncs of Services fail",
                        'With result="error" requests fail: look at the log of the leading pod.'
                        ' With result="stale" the watch shows writes late: look at the load of the'
                        " API server. Hints and endpoints change late meanwhile;"
                        " --feature-gates TopologyAwareHints=false switches hints off.",
                    ),
                    _make_rule(
                        "ZonewiseWatchStale",
                        f"max by (pod, resource) (zonewise_watch_last_byte_age_seconds)"
                        f" > {STALE_SECONDS}",
                        "1m",
                        "warning",
                        "A watch of {{ $labels.resource }} is stale",
                        "Nothing was received from the API server for minutes, not even a bookmark;"
                        " decisions may be out of date. Look at the log of the pod, and whether it"
                        " reaches the API server.",
                    ),
                    _make_rule(
                        "ZonewiseLeaderMissing",
                        f'(sum(leader_election_master_status{{name="{LEASE}"}}) or vector(0)) < 1',
                        "2m",
                        "critical",
                        "No controller leads",
                        "EndpointSlices and hints do not change until one does. Look at the pods in"
                        f" the namespace of Zonewise and at the lease {LEASE}.",
                    ),
                    *(_make_budget_rules() if budgets else ()),
                ],
            }
        ]
    }


def _make_budget_rules() -> list[Obj]:
    """Alerts about budgets."""
    return [
        _make_rule(
            "ZonewiseGateFailing",
            'sum(rate(zonewise_admission_total{path=~"/evictions|/deletions|/replicasets",'
            'outcome=~"failed|late|busy"}[5m])) > 0',
            "5m",
            "critical",
            "The gate of disruption budgets does not answer in time",
            "Evictions are refused meanwhile. Deletions that API servers could not ask about pass"
            " unasked: see apiserver_admission_webhook_fail_open_count.",
        ),
        _make_rule(
            "ZonewiseGateBypassed",
            'sum(increase(apiserver_admission_webhook_fail_open_count{name="deletions.zonewise.io"}'
            "[15m])) > 0",
            "1m",
            "warning",
            "Pods were deleted without asking their budgets",
            "No webhook of Zonewise could be reached. Look at its pods and its Service.",
        ),
        _make_rule(
            "ZonewiseReplacementsNotHeld",
            'sum(increase(apiserver_admission_webhook_fail_open_count{name="pods.zonewise.io"}'
            '[15m])) > 0 or sum(increase(zonewise_admission_total{path=~"/pods",'
            'outcome=~"failed|late|busy"}[15m])) > 0',
            "1m",
            "warning",
            "New pods of a rollout by domain may start in any domain",
            "No webhook of Zonewise answered in time when they were created. A DomainRollout may"
            " wait a minute for each domain. Look at the webhook's pods and its Service.",
        ),
    ]


def _make_rule(
    name: str, expression: str, wait: str, severity: str, summary: str, text: str
) -> Obj:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": text},
    }


def render_alerts(installation: Installation) -> list[Obj]:
    """The rules as an object, in the requested form."""
    rules = make_rules(budgets=installation.budgets != "off")
    if installation.alerts == "prometheusrule":
        return [
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PrometheusRule",
                "metadata": installation.metadata(NAME),
                "spec": rules,
            }
        ]
    if installation.alerts == "configmap":
        text = yaml.safe_dump(rules, sort_keys=False, width=1000)
        return [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": installation.metadata(f"{NAME}-alerts"),
                "data": {"zonewise.rules.yaml": text},
            }
        ]
    return []
