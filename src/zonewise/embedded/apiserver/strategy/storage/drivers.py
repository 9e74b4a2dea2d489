"""What storage drivers offer and report: classes, drivers, nodes, capacities, attachments."""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.pod.volumes import (
    MAX_TOKEN_SECONDS,
    MIN_TOKEN_SECONDS,
    validate_csi_driver_name,
)
from zonewise.embedded.apiserver.strategy.selectors import validate_label_selector
from zonewise.embedded.apiserver.strategy.storage.volumes import validate_volume_spec
from zonewise.embedded.apiserver.strategy.warnings import class_warnings

PARAMETERS_LIMIT = 512
PARAMETERS_SIZE_LIMIT = 256 * 1024
NODE_ID_LIMIT = 256
ERROR_LIMIT = 1024
MIN_PERIOD = 10


class StorageClassRules(Rules):
    """The rules of StorageClasses."""

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Deprecated labels of nodes."""
        context.warnings.extend(class_warnings(obj))

    def validate(self, obj: Field, context: StrategyContext) -> None:
        provisioner = obj["provisioner"]
        if provisioner.required():
            provisioner.without_errors(names.qualified_name_errors(provisioner.value.lower()))
        _validate_parameters(obj["parameters"])
        obj["reclaimPolicy"].required().enum(("Delete", "Retain"))
        obj["volumeBindingMode"].required().enum(("Immediate", "WaitForFirstConsumer"))
        _validate_allowed_topologies(obj["allowedTopologies"])

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What existing volumes were made with does not change."""
        for key in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
            obj[key].immutable(old.get(key))
        self.validate(obj, context)


class CSIDriverRules(Rules):
    """The rules of CSIDrivers."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """The first change is the first generation."""
        obj["metadata"].pop("generation", None)

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        spec["fsGroupPolicy"].enum(("File", "None", "ReadWriteOnceWithFSType"))
        modes = spec["volumeLifecycleModes"]
        for mode in modes.value or ():
            modes.holding(mode).enum(("Ephemeral", "Persistent"))
        audiences: set[str] = set()
        for token in spec["tokenRequests"].each():
            token.get("audience", "").unique(audiences)
            token["expirationSeconds"].between(
                MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS, "must be between 10 minutes and 2^32 seconds"
            )
        spec["nodeAllocatableUpdatePeriodSeconds"].minimum(
            MIN_PERIOD, f"must be greater than or equal to {MIN_PERIOD} seconds"
        )

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What existing volumes rely on does not change."""
        spec, old_spec = obj["spec"], old.get("spec") or {}
        spec["attachRequired"].named("attachedRequired").immutable(old_spec.get("attachRequired"))
        spec["volumeLifecycleModes"].immutable(old_spec.get("volumeLifecycleModes"))
        self.validate(obj, context)


class CSINodeRules(Rules):
    """The rules of CSINodes."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        driver_names: set[str] = set()
        for driver in obj["spec"]["drivers"].each():
            validate_csi_driver_name(driver["name"])
            driver.get("name", "").unique(driver_names)
            node_id = driver["nodeID"]
            if node_id.required() and len(node_id.value) > NODE_ID_LIMIT:
                node_id.invalid(f"must be {NODE_ID_LIMIT} characters or less")
            driver["allocatable"]["count"].not_negative()
            _validate_topology_keys(driver)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """A driver is added or removed as a whole; only its volume limit may change."""
        old_drivers = {
            driver.get("name"): driver for driver in (old.get("spec") or {}).get("drivers") or ()
        }
        drivers = obj["spec"]["drivers"]
        for driver in drivers.value or ():
            before = old_drivers.get(driver.get("name"))
            if before is not None and _without_limit(driver) != _without_limit(before):
                drivers.holding(driver).invalid("field is immutable")
        self.validate(obj, context)


class CSIStorageCapacityRules(Rules):
    """The rules of CSIStorageCapacities."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        obj.get("storageClassName", "").dns_subdomain()
        for key in ("capacity", "maximumVolumeSize"):
            amount = obj[key].value
            if amount is not None and quantity.value(amount) < 0:
                obj["capacity"].invalid("must be greater than or equal to 0", str(amount))
        validate_label_selector(obj["nodeTopology"])

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The class and topology of a capacity do not change."""
        obj["nodeTopology"].immutable(old.get("nodeTopology"))
        obj["storageClassName"].immutable(old.get("storageClassName"))
        self.validate(obj, context)


class VolumeAttachmentRules(Rules):
    """The rules of VolumeAttachments."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing is attached yet."""
        obj["status"] = {"attached": False}

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        validate_csi_driver_name(spec["attacher"])
        spec.get("nodeName", "").dns_subdomain()
        source = spec["source"]
        name, inline = source["persistentVolumeName"], source["inlineVolumeSpec"]
        detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        if name.value is None and inline.value is None:
            source.missing(detail)
        elif name.value is not None and inline.value is not None:
            source.forbid(detail)
        elif name.value is not None:
            name.required()
            name.dns_subdomain()
        else:
            validate_volume_spec(inline, inline=True)
        self.validate_status(obj, obj.value, context)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What is to be attached where does not change."""
        obj["spec"].immutable(old.get("spec"))
        self.validate(obj, context)

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        status = obj["status"]
        status["attachError"]["message"].max_bytes(ERROR_LIMIT)
        status["detachError"]["message"].max_bytes(ERROR_LIMIT)
        _validate_size(status["attachmentMetadata"])


def _validate_size(texts: Field) -> None:
    size = sum(len(key.encode()) + len(text.encode()) for key, text in (texts.value or {}).items())
    if size > PARAMETERS_SIZE_LIMIT:
        texts.too_long(PARAMETERS_SIZE_LIMIT)


def _validate_parameters(parameters: Field) -> None:
    if not parameters.max_length(PARAMETERS_LIMIT):
        return
    if "" in (parameters.value or {}):
        parameters.invalid("field can not be empty.", "")
    _validate_size(parameters)


def _validate_allowed_topologies(terms: Field) -> None:
    seen: list[dict[str, set[str]]] = [{}]  # an empty term is a duplicate of no term
    for term in terms.each():
        expressions = term["matchLabelExpressions"]
        required: dict[str, set[str]] = {}
        for expression in expressions.each():
            key, values = expression.get("key", ""), expression["values"]
            values.required()
            seen_values: set[str] = set()
            for value in values.each():
                value.unique(seen_values)
            key.qualified_name()
            if key.value in required:
                key.duplicate()
            required[key.value] = seen_values
        if required in seen:
            expressions.duplicate("")
        seen.append(required)


def _without_limit(driver: Obj) -> Obj:
    return {key: value for key, value in driver.items() if key != "allocatable"}


def _validate_topology_keys(driver: Field) -> None:
    keys: set[str] = set()
    for text in driver["topologyKeys"].value or ():
        key = driver.holding(text)  # reported without its index
        key.required()
        key.unique(keys)
        key.qualified_name()
