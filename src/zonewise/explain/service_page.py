"""Reports as text: the verdict first, then the numbers it comes from, then what would help."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from zonewise.api.values.printable import escape_unprintable
from zonewise.explain.columns import format_percent, format_table
from zonewise.explain.service_report import FamilyReport, ServiceReport
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.hints import ZoneRow
from zonewise.traffic.routes.choice import is_usable

ROWS = 50
"""How many endpoints a page lists."""


def render_service(report: ServiceReport) -> str:
    """One Service in full."""
    blocks = [[report.verdict]]
    for part in report.families:
        if part is not report.primary:
            blocks.append([f"{part.family} {part.state_result()}"])
        blocks += _render_family(report, part)
    blocks.append(list(report.notes))
    return "\n\n".join("\n".join(map(escape_unprintable, block)) for block in blocks if block)


def render_services(reports: Sequence[tuple[str, ServiceReport]]) -> str:
    """Many Services, a line each; files are named if there are several."""
    named = len({file for file, _ in reports}) > 1
    lossy = any(report.primary.decided.unanswered for _, report in reports)
    heads = ["NAMESPACE", "NAME", "MODE", "HINTS", "ENDPOINTS", "IN-ZONE", "WITHOUT", "LIMIT"]
    rows = []
    for file, report in reports:
        part = report.primary
        row = [
            report.namespace,
            report.service,
            report.mode.value,
            _format_hinted(part),
            str(sum(target.ready for target in part.endpoints)),
            format_percent(part.decided.in_zone),
            format_percent(part.in_zone_without_hints),
            format_percent(_limit_of(report, part)[1]),
            *([format_percent(part.decided.unanswered)] if lossy else ()),
        ]
        rows.append([file, *row] if named else row)
    heads += ["UNANSWERED"] * lossy
    right = "l" * named + "llllrrrr" + "r" * lossy
    return "\n".join(format_table(["FILE", *heads] if named else heads, rows, right=right))


def _format_hinted(part: FamilyReport) -> str:
    if not part.decided.hinted:
        return f"no: {part.reason.code}"
    return "yes, kept: it had hints" if part.retained else "yes"


def _limit_of(report: ServiceReport, part: FamilyReport) -> tuple[str, Fraction | None]:
    """The overload that is allowed, and the most that can stay in its zone with it."""
    if part.retained:
        return f"up to {report.limits.drop} %", part.in_zone_limit_to_keep
    return f"below {report.limits.add} %", part.in_zone_limit


def _render_family(report: ServiceReport, part: FamilyReport) -> list[list[str]]:
    traffic = _render_traffic(report, part) if part.keys is None else part.keys.render()
    return [_render_zones(part), _render_endpoints(part), traffic, _render_advice(part)]


def _render_zones(part: FamilyReport) -> list[str]:
    if not part.zones:
        return []
    heads = ["ZONE", "NODES", "CPU", "SHARE", "ENDPOINTS", "MINIMUM", "HINTED", "OVERLOAD"]
    return format_table(heads, [_zone_cells(row) for row in part.zones], right="lrrrrrrr")


def _zone_cells(row: ZoneRow) -> list[str]:
    return [
        row.zone,
        str(row.nodes),
        f"{row.cpu_milli / 1000:g}",
        format_percent(row.share),
        str(row.endpoints),
        str(row.minimum),
        str(row.assigned),
        format_percent(row.overload),
    ]


def _render_endpoints(part: FamilyReport) -> list[str]:
    listed = part.endpoints[:ROWS]
    if not listed:
        return []
    heads = ["ENDPOINT", "ZONE", "NODE", "READY", "FOR"]
    lines = format_table(heads, [_endpoint_cells(target) for target in listed])
    more = len(part.endpoints) - len(listed)
    return [*lines, f"… and {more} more; -o json shows all"] if more else lines


def _endpoint_cells(target: TrafficEndpoint) -> list[str]:
    state = "terminating" if target.terminating else "yes" if target.ready else "no"
    hinted = ", ".join([*target.hint.zones, *(f"node {node}" for node in target.hint.nodes)])
    return [target.name, target.zone or "-", target.node or "-", state, hinted or "-"]


def _render_traffic(report: ServiceReport, part: FamilyReport) -> list[str]:
    if not part.zones:
        return []
    if not any(map(is_usable, part.endpoints)):
        return ["No traffic gets an answer: the Service has no ready endpoint."]
    rows = [
        ["expected now" if part.up_to_date else "as decided", format_percent(part.decided.in_zone)],
        ["without hints", format_percent(part.in_zone_without_hints)],
    ]
    if report.limited:
        allowed, limit = _limit_of(report, part)
        rows.append([f"best {allowed} overload", format_percent(limit)])
    if not part.up_to_date:
        rows.append(["with the slices as they are", format_percent(part.applied.in_zone)])
    if part.stock is not None:
        rows.append(["with proxies that do not know weights", format_percent(part.stock.in_zone)])
    known = (part.decided.in_zone, part.applied.in_zone) != (None, None)
    lines = format_table(["TRAFFIC IN ITS ZONE", ""], rows, right="lr") if known else []
    if part.decided.unanswered:
        unanswered = format_percent(part.decided.unanswered)
        lines.append(
            f"{unanswered} of the traffic gets no answer: it is dropped on {part.decided.silent}"
            f" of {part.senders} nodes, which have no endpoint of their own."
        )
    if part.decided.hinted:
        lines.append(
            f"The busiest endpoint gets {format_percent(part.decided.overload)} more than average"
        )
        if report.limited:
            lines[-1] += f"; hints are taken away above {report.limits.drop} %"
        lines[-1] += "."
    if part.retained:
        lines.append(
            "Kept: it had hints. A Service without hints gets them only below"
            f" {report.limits.add} %."
        )
    return lines


def _render_advice(part: FamilyReport) -> list[str]:
    lines = [f"What would help: {part.reason.fix}"] if part.reason.fix else []
    if not part.up_to_date:
        lines.append("The slices carry other hints: their controller has not written these yet.")
    return lines
