"""Reports on budgets and pods for people: the verdict first, then the numbers, then what helps."""

from __future__ import annotations

from collections.abc import Sequence

from zonewise.disruption.verdict import ALLOWED, FREE
from zonewise.explain.budget_answers import AnswerCode
from zonewise.explain.budgets import BudgetReport, DomainRow, PodReport
from zonewise.explain.columns import format_table

Report = BudgetReport | PodReport

ANSWERS = {
    AnswerCode.ALLOWS: "allows",
    AnswerCode.REFUSES: "refuses",
    AnswerCode.DOES_NOT_APPLY: "does not apply",
}


def render_disruption(report: Report) -> str:
    """One budget or pod in full."""
    if isinstance(report, PodReport):
        return "\n".join(_render_pod(report))
    kind = report.kind
    lines = [f"{kind} {report.namespace}/{report.budget}: {report.reason.message}."]
    if report.domains:
        heads = ["DOMAIN", "PRESENT", "EXPECTED", "DESIRED", "HEALTHY", "ALLOWED"]
        lines += [
            "",
            *format_table(heads, [_domain_cells(row) for row in report.domains], right="lrrrrr"),
        ]
    if report.uncovered:
        lines += ["", f"{report.uncovered} pods are on nodes that the budget does not select."]
    if report.reason.fix:
        lines += ["", report.reason.fix]
    return "\n".join([*lines, *report.notes])


def render_disruptions(reports: Sequence[tuple[str, Report]]) -> str:
    """Many budgets or pods, a line each; files are named if there are several."""
    named = len({file for file, _ in reports}) > 1
    first = reports[0][1]
    if isinstance(first, PodReport):
        heads = ["NAMESPACE", "POD", "EVICTABLE", "WHY", "BLOCKED BY"]
    else:
        heads = ["NAMESPACE", "NAME", "KIND", "HOLDS", "REPLICAS", "ALLOWED", "WHY"]
    rows = [[file, *_cells(report)] if named else _cells(report) for file, report in reports]
    return "\n".join(format_table(["FILE", *heads] if named else heads, rows))


def _cells(report: Report) -> list[str]:
    if isinstance(report, PodReport):
        blockers = [f"{blocker.budget} ({blocker.domain})" for blocker in report.verdict.blockers]
        return [
            report.namespace,
            report.pod,
            "yes" if report.verdict.allowed else "no",
            report.verdict.reason.code,
            ", ".join(blockers) or "-",
        ]
    allowed = [f"{row.domain} {_format_allowed(row)}" for row in report.domains]
    return [
        report.namespace,
        report.budget,
        report.kind,
        "updates only" if report.updates_only else "disruptions",
        "?" if report.replicas is None else str(report.replicas),
        ", ".join(allowed) or "-",
        report.reason.code,
    ]


def _render_pod(report: PodReport) -> list[str]:
    verdict = report.verdict
    can = "may be disrupted now" if verdict.allowed else "may not be disrupted now"
    lines = [f"Pod {report.namespace}/{report.pod} {can}: {_explain_verdict(report)}."]
    if report.waiting is not None:
        waits = _say_it(report, str(report.waiting)).rstrip(".")
        lines += ["", f"{waits[0].upper()}{waits[1:]}."]
    codes = {answer.answer for answer in report.answers}
    if verdict.reason.code != FREE and codes - {AnswerCode.ALLOWS}:
        heads = ["BUDGET", "KIND", "DOMAIN", "ANSWER", "WHY"]
        rows = [
            [row.budget, row.kind, row.domain or "-", ANSWERS[row.answer], row.why or "-"]
            for row in report.answers
        ]
        lines += ["", *format_table(heads, rows)]
    if verdict.blockers:
        lines += ["", verdict.reason.fix]
    if verdict.charged:
        lines.append("It would be counted as unavailable until its replacement is Ready.")
    return lines


def _explain_verdict(report: PodReport) -> str:
    """The reason, without words that the sentence already has."""
    verdict = report.verdict
    if verdict.reason.code == ALLOWED:
        allowing = [each for each in report.answers if each.answer == AnswerCode.ALLOWS]
        names = ", ".join(f"{answer.kind} {answer.budget}" for answer in allowing)
        agree = (
            "budget that covers it agrees" if len(allowing) == 1 else "budgets that cover it agree"
        )
        return f"the {agree} ({names})"
    return _say_it(report, verdict.reason.message)


def _say_it(report: PodReport, message: str) -> str:
    """A sentence on the pod, without the name that the page begins with."""
    subject = f"pod {report.pod} "
    return f"it {message.removeprefix(subject)}" if message.startswith(subject) else message


def _domain_cells(row: DomainRow) -> list[str]:
    numbers = (row.present, row.expected, row.desired, row.healthy)
    return [row.domain, *map(str, numbers), _format_allowed(row)]


def _format_allowed(row: DomainRow) -> str:
    return "any" if row.allowed is None else str(row.allowed)
