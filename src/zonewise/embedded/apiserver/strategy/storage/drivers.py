"""What storage drivers offer and report: classes, drivers, nodes, capacities, attachments."""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.selectors import selector_faults
from zonewise.embedded.apiserver.strategy.storage.sources import driver_faults
from zonewise.embedded.apiserver.strategy.storage.volumes import volume_spec_faults
from zonewise.embedded.apiserver.strategy.warnings import class_warnings

MOST_PARAMETERS = 512
LARGEST_PARAMETERS = 256 * 1024
LONGEST_NODE_ID = 256
LONGEST_ERROR = 1024
SHORTEST_TOKEN, LONGEST_TOKEN = 600, 1 << 32
SHORTEST_PERIOD = 10
CLASS_POLICIES = ("Delete", "Retain")
BINDING_MODES = ("Immediate", "WaitForFirstConsumer")
GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
LIFECYCLES = ("Ephemeral", "Persistent")


class StorageClassRules(Rules):
    """The rules of StorageClasses."""

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Deprecated labels of nodes."""
        context.warnings.extend(class_warnings(obj))

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a class."""
        provisioner = obj.get("provisioner", "")
        found: Faults = []
        if not provisioner:
            found.append(field_errors.required("provisioner"))
        else:
            found += [
                field_errors.invalid("provisioner", provisioner, text)
                for text in metadata.qualified_name(provisioner.lower())
            ]
        found += _parameter_faults(obj.get("parameters") or {})
        for key, known in (("reclaimPolicy", CLASS_POLICIES), ("volumeBindingMode", BINDING_MODES)):
            value = obj.get(key)
            if not value:
                found.append(field_errors.required(key))
            elif value not in known:
                found.append(field_errors.unsupported(key, value, known))
        return found + _topology_faults(obj.get("allowedTopologies") or ())

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What volumes were made by stays as it was."""
        keys = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
        return _immutable(obj, old, *keys) + self.validate(obj, context)


class DriverRules(Rules):
    """The rules of CSIDrivers."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """The first change is the first generation."""
        obj["metadata"].pop("generation", None)

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a driver."""
        spec = obj.get("spec") or {}
        found: Faults = []
        policy = spec.get("fsGroupPolicy")
        if policy is not None and policy not in GROUP_POLICIES:
            found.append(field_errors.unsupported("spec.fsGroupPolicy", policy, GROUP_POLICIES))
        for mode in spec.get("volumeLifecycleModes") or ():
            if mode not in LIFECYCLES:
                found.append(
                    field_errors.unsupported("spec.volumeLifecycleModes", mode, LIFECYCLES)
                )
        seen: set[str] = set()
        for index, token in enumerate(spec.get("tokenRequests") or ()):
            path = f"spec.tokenRequests[{index}]"
            audience = token.get("audience", "")
            if audience in seen:
                found.append(field_errors.duplicate(f"{path}.audience", audience))
            seen.add(audience)
            seconds = token.get("expirationSeconds")
            if seconds is not None and not SHORTEST_TOKEN <= seconds <= LONGEST_TOKEN:
                text = "must be between 10 minutes and 2^32 seconds"
                found.append(field_errors.invalid(f"{path}.expirationSeconds", seconds, text))
        period = spec.get("nodeAllocatableUpdatePeriodSeconds")
        if period is not None and period < SHORTEST_PERIOD:
            path = "spec.nodeAllocatableUpdatePeriodSeconds"
            text = f"must be greater than or equal to {SHORTEST_PERIOD} seconds"
            found.append(field_errors.invalid(path, period, text))
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What existing volumes rely on stays."""
        spec, before = obj.get("spec") or {}, old.get("spec") or {}
        found: Faults = []
        for key, shown in (
            ("attachRequired", "attachedRequired"),
            ("volumeLifecycleModes", "volumeLifecycleModes"),
        ):
            if spec.get(key) != before.get(key):
                found.append(
                    field_errors.invalid(f"spec.{shown}", spec.get(key), "field is immutable")
                )
        return found + self.validate(obj, context)


class DriverNodeRules(Rules):
    """The rules of CSINodes."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a node's drivers."""
        found: Faults = []
        seen: set[str] = set()
        for index, driver in enumerate((obj.get("spec") or {}).get("drivers") or ()):
            path = f"spec.drivers[{index}]"
            name, identity = driver.get("name", ""), driver.get("nodeID", "")
            found += driver_faults(name, f"{path}.name")
            if name in seen:
                found.append(field_errors.duplicate(f"{path}.name", name))
            seen.add(name)
            if not identity:
                found.append(field_errors.required(f"{path}.nodeID"))
            elif len(identity) > LONGEST_NODE_ID:
                text = f"must be {LONGEST_NODE_ID} characters or less"
                found.append(field_errors.invalid(f"{path}.nodeID", identity, text))
            count = (driver.get("allocatable") or {}).get("count")
            if count is not None and count < 0:
                text = "must be greater than or equal to 0"
                found.append(field_errors.invalid(f"{path}.allocatable.count", count, text))
            found += _key_faults(driver.get("topologyKeys") or [], path)
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """A driver is added or removed as a whole; only its volume limit may change."""
        before = {one.get("name"): one for one in (old.get("spec") or {}).get("drivers") or ()}
        found: Faults = []
        for driver in (obj.get("spec") or {}).get("drivers") or ():
            was = before.get(driver.get("name"))
            if was is not None and _fixed(driver) != _fixed(was):
                found.append(field_errors.invalid("spec.drivers", driver, "field is immutable"))
        return found + self.validate(obj, context)


class CapacityRules(Rules):
    """The rules of CSIStorageCapacities."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a report of capacity."""
        name = obj.get("storageClassName", "")
        found = [
            field_errors.invalid("storageClassName", name, text) for text in names.subdomain(name)
        ]
        for key in ("capacity", "maximumVolumeSize"):
            amount = obj.get(key)
            if amount is not None and quantity.value(amount) < 0:
                text = "must be greater than or equal to 0"
                found.append(field_errors.invalid("capacity", str(amount), text))
        return found + selector_faults(obj.get("nodeTopology"), "nodeTopology")

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The class and topology of a capacity do not change."""
        keys = ("nodeTopology", "storageClassName")
        return _immutable(obj, old, *keys) + self.validate(obj, context)


class AttachmentRules(Rules):
    """The rules of VolumeAttachments."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing is attached yet."""
        obj["status"] = {"attached": False}

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with an attachment."""
        spec = obj.get("spec") or {}
        found = driver_faults(spec.get("attacher", ""), "spec.attacher")
        node = spec.get("nodeName", "")
        found += [
            field_errors.invalid("spec.nodeName", node, text) for text in names.subdomain(node)
        ]
        source = spec.get("source") or {}
        name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
        path = "spec.source"
        if name is None and inline is None:
            text = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
            found.append(field_errors.required(path, text))
        elif name is not None and inline is not None:
            text = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
            found.append(field_errors.forbidden(path, text))
        elif name is not None:
            at = f"{path}.persistentVolumeName"
            if not name:
                found.append(field_errors.required(at))
            found += [field_errors.invalid(at, name, text) for text in names.subdomain(name)]
        elif inline is not None:
            found += volume_spec_faults(inline, f"{path}.inlineVolumeSpec", inline=True)
        return found + self.validate_status(obj, obj, context)

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is to be attached where stays."""
        return _immutable(obj, old, "spec") + self.validate(obj, context)

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a report of attaching."""
        status = obj.get("status") or {}
        found: Faults = [
            field_errors.too_long(f"status.{key}.message", LONGEST_ERROR)
            for key in ("attachError", "detachError")
            if len((status.get(key) or {}).get("message", "").encode()) > LONGEST_ERROR
        ]
        facts = status.get("attachmentMetadata") or {}
        size = sum(len(key.encode()) + len(value.encode()) for key, value in facts.items())
        if size > LARGEST_PARAMETERS:
            found.append(field_errors.too_long("status.attachmentMetadata", LARGEST_PARAMETERS))
        return found


def _immutable(obj: Obj, old: Obj, *keys: str) -> Faults:
    return [
        field_errors.invalid(key, obj.get(key), "field is immutable")
        for key in keys
        if obj.get(key) != old.get(key)
    ]


def _parameter_faults(parameters: dict[str, str]) -> Faults:
    found: Faults = []
    if len(parameters) > MOST_PARAMETERS:
        found.append(field_errors.too_long("parameters", MOST_PARAMETERS))
        return found
    if "" in parameters:
        text = "field can not be empty."
        found.append(field_errors.invalid("parameters", "", text))
    size = sum(len(key.encode()) + len(value.encode()) for key, value in parameters.items())
    if size > LARGEST_PARAMETERS:
        found.append(field_errors.too_long("parameters", LARGEST_PARAMETERS))
    return found


def _topology_faults(terms: list[Obj] | tuple[()]) -> Faults:
    found: Faults = []
    known: list[dict[str, set[str]]] = [{}]  # a term that demands nothing is no term
    for index, term in enumerate(terms):
        path = f"allowedTopologies[{index}].matchLabelExpressions"
        wanted: dict[str, set[str]] = {}
        for number, one in enumerate(term.get("matchLabelExpressions") or ()):
            at, key = f"{path}[{number}]", one.get("key", "")
            values = one.get("values") or []
            if not values:
                found.append(field_errors.required(f"{at}.values"))
            for place, value in enumerate(values):
                if value in values[:place]:
                    found.append(field_errors.duplicate(f"{at}.values[{place}]", value))
            found += [
                field_errors.invalid(f"{at}.key", key, text)
                for text in metadata.qualified_name(key)
            ]
            if key in wanted:
                found.append(field_errors.duplicate(f"{at}.key", key))
            wanted[key] = set(values)
        if wanted in known:
            found.append(field_errors.duplicate(path, ""))
        known.append(wanted)
    return found


def _fixed(driver: Obj) -> Obj:
    return {key: value for key, value in driver.items() if key != "allocatable"}


def _key_faults(keys: list[str], path: str) -> Faults:
    found: Faults = []
    for index, key in enumerate(keys):
        if not key:
            found.append(field_errors.required(path))
        if key in keys[:index]:
            found.append(field_errors.duplicate(path, key))
        found += [field_errors.invalid(path, key, text) for text in metadata.qualified_name(key)]
    return found
