"""Reports on budgets and pods for people: the verdict first, then the numbers, then what helps."""

from __future__ import annotations

from collections.abc import Sequence

from zonewise.disruption.verdict import ALLOWED, FREE
from zonewise.explain.budget_answers import AnswerCode
from zonewise.explain.budgets import BudgetReport, DomainRow, PodReport
from zonewise.explain.columns import table

Report = BudgetReport | PodReport

ANSWERS = {
    AnswerCode.ALLOWS: "allows",
    AnswerCode.REFUSES: "refuses",
    AnswerCode.DOES_NOT_APPLY: "does not apply",
}


def disruption_page(report: Report) -> str:
    """One budget or pod in full."""
    if isinstance(report, PodReport):
        return "\n".join(_pod(report))
    kind = report.kind
    lines = [f"{kind} {report.namespace}/{report.budget}: {report.reason.message}."]
    if report.domains:
        heads = ["DOMAIN", "PRESENT", "EXPECTED", "DESIRED", "HEALTHY", "ALLOWED"]
        lines += ["", *table(heads, [_row(row) for row in report.domains], right="lrrrrr")]
    if report.uncovered:
        lines += ["", f"{report.uncovered} pods are on nodes the budget does not look at."]
    if report.reason.fix:
        lines += ["", report.reason.fix]
    return "\n".join([*lines, *report.notes])


def disruptions_page(reports: Sequence[tuple[str, Report]]) -> str:
    """Many budgets or pods, a line each; files are named if there are several."""
    named = len({file for file, _ in reports}) > 1
    first = reports[0][1]
    if isinstance(first, PodReport):
        heads = ["NAMESPACE", "POD", "EVICTABLE", "WHY", "BLOCKED BY"]
    else:
        heads = ["NAMESPACE", "NAME", "KIND", "HOLDS", "REPLICAS", "ALLOWED", "WHY"]
    rows = [[file, *_line(report)] if named else _line(report) for file, report in reports]
    return "\n".join(table(["FILE", *heads] if named else heads, rows))


def _line(report: Report) -> list[str]:
    if isinstance(report, PodReport):
        blockers = [f"{one.budget} ({one.domain})" for one in report.verdict.blockers]
        return [
            report.namespace,
            report.pod,
            "yes" if report.verdict.allowed else "no",
            report.verdict.reason.code,
            ", ".join(blockers) or "-",
        ]
    allowed = [f"{row.domain} {_allowed(row)}" for row in report.domains]
    return [
        report.namespace,
        report.budget,
        report.kind,
        "updates only" if report.updates_only else "disruptions",
        "?" if report.replicas is None else str(report.replicas),
        ", ".join(allowed) or "-",
        report.reason.code,
    ]


def _pod(report: PodReport) -> list[str]:
    verdict = report.verdict
    can = "may be disrupted now" if verdict.allowed else "may not be disrupted now"
    lines = [f"Pod {report.namespace}/{report.pod} {can}: {_why(report)}."]
    if verdict.reason.code != FREE and any(
        one.answer != AnswerCode.ALLOWS for one in report.answers
    ):
        heads = ["BUDGET", "KIND", "DOMAIN", "ANSWER", "WHY"]
        rows = [
            [one.budget, one.kind, one.domain or "-", ANSWERS[one.answer], one.why or "-"]
            for one in report.answers
        ]
        lines += ["", *table(heads, rows)]
    if verdict.blockers:
        lines += ["", verdict.reason.fix]
    if verdict.charged:
        lines.append("It would be counted as unavailable until its replacement is Ready.")
    return lines


def _why(report: PodReport) -> str:
    """The reason, without words that the sentence already has."""
    verdict = report.verdict
    if verdict.reason.code == ALLOWED:
        agreeing = [one for one in report.answers if one.answer == AnswerCode.ALLOWS]
        names = ", ".join(f"{one.kind} {one.budget}" for one in agreeing)
        agree = "the budget that covers it agrees" if len(agreeing) == 1 else ""
        return f"{agree or 'the budgets that cover it agree'} ({names})"
    own = f"pod {report.pod} "
    message = verdict.reason.message
    return f"it {message.removeprefix(own)}" if message.startswith(own) else message


def _row(row: DomainRow) -> list[str]:
    numbers = (row.present, row.expected, row.desired, row.healthy)
    return [row.domain, *map(str, numbers), _allowed(row)]


def _allowed(row: DomainRow) -> str:
    return "any" if row.allowed is None else str(row.allowed)
