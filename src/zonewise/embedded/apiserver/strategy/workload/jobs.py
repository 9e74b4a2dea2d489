"""Jobs and CronJobs."""

from __future__ import annotations

import re

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.api.values.cron import schedule_fault, zone_fault
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.numbers import count_faults
from zonewise.embedded.apiserver.strategy.pod.spec import template_faults
from zonewise.embedded.apiserver.strategy.pod.warnings import warn_of_workload
from zonewise.embedded.apiserver.strategy.selectors import matches, selector_faults
from zonewise.embedded.apiserver.strategy.workload.deployments import IMMUTABLE, MISMATCH, same
from zonewise.embedded.apiserver.strategy.workload.job_policies import (
    failure_faults,
    success_faults,
)
from zonewise.embedded.apiserver.strategy.workload.job_status import status_faults

UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")
NAME_LABELS = ("job-name", "batch.kubernetes.io/job-name")
MODES = ("Indexed", "NonIndexed")
REPLACEMENTS = ("Failed", "TerminatingOrFailed")
CONCURRENCY = ("Allow", "Forbid", "Replace")
MOST_INDEXES = 100_000
SOFT_LIMIT = 10_000
MANAGER_LENGTH = 63
CRON_NAME_LENGTH = 52
FROZEN = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)
_DOMAIN_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+\Z", re.ASCII)


class JobRules(Rules):
    """The rules of Jobs; their pods are orphaned by default."""

    default_policy = "Orphan"
    selectable = frozenset({"status.successful"})

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        return {"status.successful": str((obj.get("status") or {}).get("succeeded", 0))}

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A job without a manual selector gets unique labels and a selector for them."""
        obj["status"] = {}
        spec, meta = obj.setdefault("spec", {}), obj["metadata"]
        if spec.get("manualSelector"):
            return
        labels = spec.setdefault("template", {}).setdefault("metadata", {}).setdefault("labels", {})
        shared = bool(labels) and meta.get("labels") == labels
        # Faults in labels copied from the generated ones are not the client's: they are set last.
        meta.setdefault("labels", {})
        for key in NAME_LABELS:
            labels.setdefault(key, meta.get("name", ""))
        for key in UID_LABELS:
            labels.setdefault(key, meta["uid"])
        if shared:
            meta["labels"] = dict(labels)
        selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
        selector.setdefault(UID_LABELS[1], meta["uid"])

    def allocate(self, obj: Obj, old: Obj | None, context: StrategyContext) -> Faults:
        """A job without labels has those of its pods."""
        meta = obj["metadata"]
        if old is None and not meta.get("labels"):
            meta["labels"] = dict(obj["spec"]["template"]["metadata"].get("labels") or {})
        return []

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a Job."""
        spec, meta = obj["spec"], obj["metadata"]
        found = _generated_faults(spec, meta) + job_spec_faults(spec, "spec")
        selector = spec.get("selector")
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if selector is None:
            found.append(field_errors.required("spec.selector"))
        bad = selector_faults(selector, "spec.selector")
        found += bad
        if not bad and not matches(selector, labels):
            found.append(field_errors.invalid("spec.template.metadata.labels", labels, MISMATCH))
        wanted = spec.get("completions")
        if spec.get("completionMode") == "Indexed" and wanted is not None and wanted > 0:
            last = f"{meta.get('name', '')}-{wanted - 1}"
            if names.label(last):
                text = f"will not able to create pod with invalid DNS label: {last}"
                found.append(field_errors.invalid("metadata.name", meta.get("name", ""), text))
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What a job is about stays; a suspended one may be tuned."""
        found = self.validate(obj, context)
        spec, before = obj["spec"], old["spec"]
        wanted = spec.get("completions")
        if wanted != before.get("completions"):
            if spec.get("completionMode") != "Indexed":
                found.append(field_errors.invalid("spec.completions", wanted, IMMUTABLE))
            elif wanted is not None and wanted != spec.get("parallelism"):
                text = "can only be modified in tandem with spec.parallelism"
                found.append(field_errors.invalid("spec.completions", wanted, text))
        for key in FROZEN:
            found += same(obj, old, key)
        return found + _template_change(spec, before, old)

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        return status_faults(obj, old)

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context)


def _generated_faults(spec: Obj, meta: Obj) -> Faults:
    if spec.get("manualSelector") or spec.get("selector") is None:
        return []
    found: Faults = []
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    expected: dict[str, str] = {}
    for keys, value in ((UID_LABELS, meta.get("uid", "")), (NAME_LABELS, meta.get("name", ""))):
        for key in keys:
            expected[key] = value
            at = "spec.template.metadata.labels"
            if key not in labels:
                found.append(field_errors.required(f"{at}[{key}]", f"must be '{value}'"))
            elif labels[key] != value:
                found.append(
                    field_errors.invalid(f"{at}[{key}]", labels[key], f"must be '{value}'")
                )
    selector = spec["selector"]
    if not selector_faults(selector, "spec.selector") and not matches(selector, expected):
        found.append(
            field_errors.invalid("spec.selector", selector, "`selector` not auto-generated")
        )
    return found


def _template_change(spec: Obj, before: Obj, old: Obj) -> Faults:
    now, was = spec.get("template") or {}, before.get("template") or {}
    if now == was:
        return []
    status = old.get("status") or {}
    halted = any(
        one.get("type") == "Suspended" and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )
    waiting = before.get("suspend") and (not status.get("startTime") or halted)
    if not waiting or status.get("active"):
        return [field_errors.invalid("spec.template", now, IMMUTABLE)]
    if _lasting(now) == _lasting(was):
        return []
    return [field_errors.invalid("spec.template.spec", now.get("spec"), IMMUTABLE)]


def _lasting(template: Obj) -> Obj:
    """The part of a template that stays even while the job is suspended."""
    spec = dict(template.get("spec") or {})
    for key in ("nodeSelector", "tolerations", "schedulingGates"):
        spec.pop(key, None)
    affinity = {
        key: value
        for key, value in (spec.pop("affinity", None) or {}).items()
        if key != "nodeAffinity"
    }
    if affinity:
        spec["affinity"] = affinity
    for group in ("containers", "initContainers"):
        if spec.get(group):
            spec[group] = [
                {key: value for key, value in one.items() if key != "resources"}
                for one in spec[group]
            ]
    return spec


def job_spec_faults(spec: Obj, path: str) -> Faults:
    """What is wrong with the spec of a Job, on its own or in a CronJob."""
    found = count_faults(
        spec,
        path,
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        text = "when maxFailedIndexes is specified"
        found.append(field_errors.required(f"{path}.backoffLimitPerIndex", text))
    if spec.get("managedBy") is not None:
        found += _manager_faults(spec["managedBy"], f"{path}.managedBy")
    found += _mode_faults(spec, path)
    if spec.get("podFailurePolicy") is not None:
        found += failure_faults(spec, f"{path}.podFailurePolicy")
    if spec.get("successPolicy") is not None:
        if spec.get("completionMode") != "Indexed":
            text = "requires indexed completion mode"
            found.append(field_errors.invalid(f"{path}.successPolicy", spec["successPolicy"], text))
        else:
            found += success_faults(spec, f"{path}.successPolicy")
    replacement = spec.get("podReplacementPolicy")
    if replacement is not None:
        known = ("Failed",) if spec.get("podFailurePolicy") is not None else REPLACEMENTS
        if replacement not in known:
            at = f"{path}.podReplacementPolicy"
            found.append(field_errors.unsupported(at, replacement, known))
    template = spec.get("template") or {}
    found += template_faults(template, f"{path}.template")
    policy = (template.get("spec") or {}).get("restartPolicy", "")
    at = f"{path}.template.spec.restartPolicy"
    if policy in {"", "Always"}:
        found.append(field_errors.required(at, 'valid values: "OnFailure", "Never"'))
    elif policy not in {"OnFailure", "Never"}:
        found.append(field_errors.unsupported(at, policy, ("Never", "OnFailure")))
    elif policy != "Never" and spec.get("podFailurePolicy") is not None:
        text = 'only "Never" is supported when podFailurePolicy is specified'
        found.append(field_errors.invalid(at, policy, text))
    return found


def _manager_faults(name: str, path: str) -> Faults:
    found: Faults = []
    domain, slash, rest = name.partition("/")
    if not name:
        found.append(field_errors.required(path))
    elif not slash or not domain or not rest:
        text = 'must be a domain-prefixed path (such as "acme.io/foo")'
        found.append(field_errors.invalid(path, name, text))
    else:
        found += [field_errors.invalid(path, domain, text) for text in names.subdomain(domain)]
        if not _DOMAIN_PATH.match(rest):
            found.append(field_errors.invalid(path, rest, "Invalid path"))
    if len(name) > MANAGER_LENGTH:
        found.append(field_errors.too_long(path, MANAGER_LENGTH))
    return found


def _mode_faults(spec: Obj, path: str) -> Faults:
    found: Faults = []
    mode = spec.get("completionMode")
    wanted, failed = spec.get("completions"), spec.get("maxFailedIndexes")
    side_by_side = spec.get("parallelism")
    if mode is not None and mode not in MODES:
        found.append(field_errors.unsupported(f"{path}.completionMode", mode, MODES))
    if mode in {None, "NonIndexed"}:
        for key in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(key) is not None:
                text = "requires indexed completion mode"
                found.append(field_errors.invalid(f"{path}.{key}", spec[key], text))
    if mode != "Indexed":
        return found
    if wanted is None:
        found.append(
            field_errors.required(f"{path}.completions", "when completion mode is Indexed")
        )
    if side_by_side is not None and side_by_side > MOST_INDEXES:
        text = f"must be less than or equal to {MOST_INDEXES} when completion mode is Indexed"
        found.append(field_errors.invalid(f"{path}.parallelism", side_by_side, text))
    if failed is not None:
        at = f"{path}.maxFailedIndexes"
        if wanted is not None and failed > wanted:
            text = "must be less than or equal to completions"
            found.append(field_errors.invalid(at, failed, text))
        if failed > MOST_INDEXES:
            text = f"must be less than or equal to {MOST_INDEXES}"
            found.append(field_errors.invalid(at, failed, text))
    if (
        wanted is not None
        and wanted > MOST_INDEXES
        and spec.get("backoffLimitPerIndex") is not None
    ):
        found += _many_faults(spec, path)
    return found


def _many_faults(spec: Obj, path: str) -> Faults:
    """Limits of jobs with very many indexes that count failures by index."""
    found: Faults = []
    if spec.get("maxFailedIndexes") is None:
        text = f"must be specified when completions is above {MOST_INDEXES}"
        found.append(field_errors.required(f"{path}.maxFailedIndexes", text))
    for key in ("parallelism", "maxFailedIndexes"):
        value = spec.get(key)
        if value is not None and value > SOFT_LIMIT:
            text = f"must be less than or equal to {SOFT_LIMIT} when completions are above"
            found.append(field_errors.invalid(f"{path}.{key}", value, f"{text} {MOST_INDEXES}"))
    return found


class CronJobRules(Rules):
    """The rules of CronJobs."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing ran yet."""
        obj["status"] = {}

    def validate_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new CronJob."""
        found = _cron_faults(obj.get("spec") or {}, None)
        name = obj["metadata"].get("name", "")
        if len(name) > CRON_NAME_LENGTH:
            text = f"must be no more than {CRON_NAME_LENGTH} characters"
            found.append(field_errors.invalid("metadata.name", name, text))
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a changed CronJob."""
        return _cron_faults(obj.get("spec") or {}, old["spec"])

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context, path="spec.jobTemplate.spec.template")


def _cron_faults(spec: Obj, before: Obj | None) -> Faults:
    found: Faults = []
    schedule, zone = spec.get("schedule", ""), spec.get("timeZone")
    if not schedule:
        found.append(field_errors.required("spec.schedule"))
    else:
        why = schedule_fault(schedule)
        if why:
            found.append(field_errors.invalid("spec.schedule", schedule, why))
        if "TZ" in schedule:
            if before is None or "TZ" not in before.get("schedule", ""):
                text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
                found.append(field_errors.invalid("spec.schedule", schedule, text))
            elif zone is not None:
                text = "cannot use both timeZone field and TZ or CRON_TZ in schedule"
                found.append(field_errors.invalid("spec.schedule", schedule, text))
    if zone is not None and (before is None or before.get("timeZone") != zone):
        why = zone_fault(zone)
        if why:
            found.append(field_errors.invalid("spec.timeZone", zone, why))
    policy = spec.get("concurrencyPolicy", "")
    if not policy:
        found.append(field_errors.required("spec.concurrencyPolicy"))
    elif policy not in CONCURRENCY:
        found.append(field_errors.unsupported("spec.concurrencyPolicy", policy, CONCURRENCY))
    found += count_faults(
        spec,
        "spec",
        "startingDeadlineSeconds",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    )
    inner = (spec.get("jobTemplate") or {}).get("spec") or {}
    path = "spec.jobTemplate.spec"
    found += job_spec_faults(inner, path)
    if inner.get("selector") is not None:
        text = "`selector` will be auto-generated"
        found.append(field_errors.invalid(f"{path}.selector", inner["selector"], text))
    if inner.get("manualSelector"):
        found.append(field_errors.unsupported(f"{path}.manualSelector", True, ("false", "nil")))
    return found
