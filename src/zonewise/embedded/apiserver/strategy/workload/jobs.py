"""Jobs and CronJobs."""

from __future__ import annotations

import re

from zonewise.api.field_cursor import IMMUTABLE, Field
from zonewise.api.values import names
from zonewise.api.values.cron import schedule_error, time_zone_error
from zonewise.embedded.apiserver.strategy.base import Obj, StrategyContext, words
from zonewise.embedded.apiserver.strategy.pod.spec import validate_pod_template_spec
from zonewise.embedded.apiserver.strategy.selectors import matches, validate_label_selector
from zonewise.embedded.apiserver.strategy.workload.job_policies import (
    validate_pod_failure_policy,
    validate_success_policy,
)
from zonewise.embedded.apiserver.strategy.workload.job_status import (
    has_condition,
    validate_job_status_update,
)
from zonewise.embedded.apiserver.strategy.workload.replicated import (
    WorkloadRules,
    validate_not_negative,
    validate_selector_matches_labels,
)

UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")
NAME_LABELS = ("job-name", "batch.kubernetes.io/job-name")
COMPLETION_MODES = ("Indexed", "NonIndexed")
REPLACEMENT_POLICIES = ("Failed", "TerminatingOrFailed")
CONCURRENCY_POLICIES = ("Allow", "Forbid", "Replace")
MAX_INDEXES = 100_000
MAX_PARALLEL_INDEXES = 10_000
MANAGER_LIMIT = 63
CRON_NAME_LIMIT = 52
IMMUTABLE_FIELDS = words(
    "selector completionMode podFailurePolicy backoffLimitPerIndex managedBy successPolicy"
)
_DOMAIN_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+\Z", re.ASCII)


class JobRules(WorkloadRules):
    """The rules of Jobs; their pods are orphaned by default."""

    default_policy = "Orphan"
    selectable = frozenset({"status.successful"})

    def fields(self, obj: Obj) -> dict[str, str]:
        return {"status.successful": str((obj.get("status") or {}).get("succeeded", 0))}

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A job without a manual selector gets unique labels and a selector for them."""
        obj["status"] = {}
        spec, meta = obj.setdefault("spec", {}), obj["metadata"]
        if spec.get("manualSelector"):
            return
        labels = spec.setdefault("template", {}).setdefault("metadata", {}).setdefault("labels", {})
        shared = bool(labels) and meta.get("labels") == labels
        # Errors in labels copied from the generated ones are not the client's: they are set last.
        meta.setdefault("labels", {})
        for key in NAME_LABELS:
            labels.setdefault(key, meta.get("name", ""))
        for key in UID_LABELS:
            labels.setdefault(key, meta["uid"])
        if shared:
            meta["labels"] = dict(labels)
        selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
        selector.setdefault(UID_LABELS[1], meta["uid"])

    def allocate(self, obj: Field, old: Obj | None, context: StrategyContext) -> None:
        """A job without labels has those of its pods."""
        meta, spec = obj.value["metadata"], obj.value["spec"]
        if old is None and not meta.get("labels"):
            meta["labels"] = dict(spec["template"]["metadata"].get("labels") or {})

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec, name = obj["spec"], obj["metadata"].get("name", "")
        _validate_generated_selector(obj)
        _validate_job_spec(spec)
        selector = spec["selector"]
        selector.present()
        if selector.is_valid(validate_label_selector):
            validate_selector_matches_labels(spec)
        completions = spec.value.get("completions")
        if spec.value.get("completionMode") == "Indexed" and completions:
            last_pod = f"{name.value}-{completions - 1}"
            if completions > 0 and names.label_errors(last_pod):
                name.invalid(f"will not able to create pod with invalid DNS label: {last_pod}")

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What a job is about does not change; a suspended one may be tuned."""
        self.validate(obj, context)
        spec, old_spec = obj["spec"], old["spec"]
        completions = spec["completions"]
        if spec.value.get("completionMode") != "Indexed":
            completions.immutable(old_spec.get("completions"))
        elif completions.value not in {
            None,
            old_spec.get("completions"),
            spec.value.get("parallelism"),
        }:
            completions.invalid("can only be modified in tandem with spec.parallelism")
        for key in IMMUTABLE_FIELDS:
            spec[key].immutable(old_spec.get(key))
        _validate_template_update(spec["template"], old)

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        validate_job_status_update(obj, old)


def _validate_generated_selector(job: Field) -> None:
    spec, meta = job["spec"], job.value["metadata"]
    selector, labels = spec["selector"], spec["template"]["metadata"]["labels"]
    if spec["manualSelector"].value or selector.value is None:
        return
    expected: dict[str, str] = {}
    for keys, value in ((UID_LABELS, meta.get("uid", "")), (NAME_LABELS, meta.get("name", ""))):
        for key in keys:
            expected[key] = value
            label = labels.entry(key)
            if label.present(f"must be '{value}'") and label.value != value:
                label.invalid(f"must be '{value}'")
    is_valid = Field(selector.value, []).is_valid(validate_label_selector)
    if is_valid and not matches(selector.value, expected):
        selector.invalid("`selector` not auto-generated")


def _validate_template_update(template: Field, old: Obj) -> None:
    current, before = template.value or {}, old["spec"].get("template") or {}
    if current == before:
        return
    status = old.get("status") or {}
    is_waiting = old["spec"].get("suspend") and (
        not status.get("startTime") or has_condition(status, "Suspended")
    )
    if not is_waiting or status.get("active"):
        template.invalid(IMMUTABLE, current)
    elif _without_scheduling(current) != _without_scheduling(before):
        template["spec"].invalid(IMMUTABLE)


def _without_scheduling(template: Obj) -> Obj:
    """The part of a template that does not change even while the job is suspended."""
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
    for containers in ("containers", "initContainers"):
        if spec.get(containers):
            spec[containers] = [
                {key: value for key, value in container.items() if key != "resources"}
                for container in spec[containers]
            ]
    return spec


def _validate_job_spec(spec: Field) -> None:
    """The spec of a Job, on its own or in a CronJob."""
    fields = spec.value or {}
    validate_not_negative(
        spec,
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    if fields.get("maxFailedIndexes") is not None:
        spec["backoffLimitPerIndex"].present("when maxFailedIndexes is specified")
    if fields.get("managedBy") is not None:
        _validate_managed_by(spec["managedBy"])
    _validate_completion_mode(spec, fields)
    has_failure_policy = fields.get("podFailurePolicy") is not None
    if has_failure_policy:
        validate_pod_failure_policy(spec)
    if fields.get("successPolicy") is not None:
        if fields.get("completionMode") != "Indexed":
            spec["successPolicy"].invalid("requires indexed completion mode")
        else:
            validate_success_policy(spec)
    spec["podReplacementPolicy"].enum(("Failed",) if has_failure_policy else REPLACEMENT_POLICIES)
    validate_pod_template_spec(spec["template"])
    policy = spec["template"]["spec"]["restartPolicy"]
    if policy.value in {None, "", "Always"}:
        policy.missing('valid values: "OnFailure", "Never"')
    elif policy.enum(("Never", "OnFailure")) and has_failure_policy and policy.value != "Never":
        policy.invalid('only "Never" is supported when podFailurePolicy is specified')


def _validate_managed_by(name: Field) -> None:
    domain, slash, path = name.value.partition("/")
    if name.required():
        if not slash or not domain or not path:
            name.invalid('must be a domain-prefixed path (such as "acme.io/foo")')
        else:
            name.holding(domain).dns_subdomain()
            name.holding(path).matches(_DOMAIN_PATH, "Invalid path")
    name.max_length(MANAGER_LIMIT)


def _validate_completion_mode(spec: Field, fields: Obj) -> None:
    mode, completions = fields.get("completionMode"), fields.get("completions")
    spec["completionMode"].enum(COMPLETION_MODES)
    if mode in {None, "NonIndexed"}:
        for key in ("backoffLimitPerIndex", "maxFailedIndexes"):
            spec[key].invalid_set("requires indexed completion mode")
    if mode != "Indexed":
        return
    parallelism, failed = spec["parallelism"], spec["maxFailedIndexes"]
    spec["completions"].present("when completion mode is Indexed")
    parallelism.maximum(
        MAX_INDEXES, f"must be less than or equal to {MAX_INDEXES} when completion mode is Indexed"
    )
    if completions is not None:
        failed.maximum(completions, "must be less than or equal to completions")
    failed.maximum(MAX_INDEXES)
    if (completions or 0) > MAX_INDEXES and fields.get("backoffLimitPerIndex") is not None:
        failed.present(f"must be specified when completions is above {MAX_INDEXES}")
        for count in (parallelism, failed):
            count.maximum(
                MAX_PARALLEL_INDEXES,
                f"must be less than or equal to {MAX_PARALLEL_INDEXES} when completions are above"
                f" {MAX_INDEXES}",
            )


class CronJobRules(WorkloadRules):
    """The rules of CronJobs."""

    template_path = "spec.jobTemplate.spec.template"

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing ran yet."""
        obj["status"] = {}

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        _validate_cron_job_spec(obj["spec"], None)
        name = obj["metadata"].get("name", "")
        if len(name.value) > CRON_NAME_LIMIT:
            name.invalid(f"must be no more than {CRON_NAME_LIMIT} characters")

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        _validate_cron_job_spec(obj["spec"], old["spec"])


def _validate_cron_job_spec(spec: Field, old: Obj | None) -> None:
    schedule, time_zone = spec["schedule"], spec["timeZone"]
    if schedule.required():
        schedule.invalid_if(schedule_error(schedule.value))
        if "TZ" in schedule.value:
            if old is None or "TZ" not in old.get("schedule", ""):
                schedule.invalid("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
            elif time_zone.value is not None:
                schedule.invalid("cannot use both timeZone field and TZ or CRON_TZ in schedule")
    is_new_zone = old is None or old.get("timeZone") != time_zone.value
    if time_zone.value is not None and is_new_zone:
        time_zone.invalid_if(time_zone_error(time_zone.value))
    spec["concurrencyPolicy"].required().enum(CONCURRENCY_POLICIES)
    validate_not_negative(
        spec, "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"
    )
    job_spec = spec["jobTemplate"]["spec"]
    _validate_job_spec(job_spec)
    job_spec["selector"].invalid_set("`selector` will be auto-generated")
    if job_spec["manualSelector"].value:
        job_spec["manualSelector"].unsupported(("false", "nil"))
