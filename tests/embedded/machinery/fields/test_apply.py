"""The owners of fields after ordinary writes and after server-side apply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.errors import BadRequest, Conflict
from zonewise.embedded.machinery.fields.apply import LAST_APPLIED, apply
from zonewise.embedded.machinery.fields.comparison import SchemaViolation, compare, fields_of
from zonewise.embedded.machinery.fields.fieldset import format_path, paths
from zonewise.embedded.machinery.fields.managed_fields import (
    ManagedFieldsEntry,
    VersionView,
    Write,
    decode,
    encode,
    keep_unchanged_times,
    manager_name,
    update_managed_fields,
)
from zonewise.embedded.machinery.fields.merging import merge, remove
from zonewise.embedded.machinery.fields.reset_fields import reset_fields_of
from zonewise.embedded.machinery.schema.schema import Schema

TEXT = Schema(shape="string")
NUMBER = Schema(shape="integer")
TEXTS = Schema(shape="map", values=TEXT)


def record(**fields: Schema) -> Schema:
    return Schema(shape="object", fields=fields)


PORT = record(port=NUMBER, protocol=TEXT.used_as(default="TCP"), name=TEXT, targetPort=NUMBER)
THING = record(
    apiVersion=TEXT,
    kind=TEXT,
    metadata=record(
        name=TEXT,
        resourceVersion=TEXT,
        labels=TEXTS,
        annotations=TEXTS,
        finalizers=Schema(shape="list", list_type="set", items=TEXT),
    ).used_as(absent_value={}),
    spec=record(
        replicas=NUMBER,
        paused=Schema(shape="boolean"),
        selector=TEXTS.used_as(atomic=True),
        args=Schema(shape="list", items=TEXT),
        ports=Schema(shape="list", list_type="map", keys=("port", "protocol"), items=PORT),
        nested=record(deep=record(x=NUMBER, y=NUMBER)),
        free=Schema(shape="any", preserve_unknown_fields=True),
    ).used_as(absent_value={}),
    status=record(phase=TEXT),
)
TIME = "2026-01-01T00:00:0{}Z"


def thing(spec: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": "t", **more.pop("metadata", {})}
    head = {"apiVersion": "v1", "kind": "Thing", "metadata": metadata}
    return {**head, **({"spec": dict(spec)} if spec is not None else {}), **more}


def write(manager: str, second: int = 0, **facts: Any) -> Write:
    subresource = facts.pop("subresource", "")
    reset = reset_fields_of("", "things", subresource, has_status=True)
    return Write(
        **{
            "schema": THING,
            "api_version": "v1",
            "manager": manager,
            "time": TIME.format(second),
            "subresource": subresource,
            "reset": reset,
            **facts,
        }
    )


def owners(entries: list[ManagedFieldsEntry]) -> dict[str, list[str]]:
    return {
        entry["manager"] + "/" + entry["operation"]: [
            format_path(p) for p in paths(entry["fieldsV1"])
        ]
        for entry in entries
    }


class Server:
    """An object under apply and update, without defaults and admission."""

    def __init__(self) -> None:
        self.live: dict[str, Any] | None = None

    def keep(self, value: dict[str, Any], entries: list[ManagedFieldsEntry]) -> dict[str, Any]:
        metadata = {k: v for k, v in value["metadata"].items() if k != "managedFields"}
        self.live = {**value, "metadata": {**metadata, "managedFields": entries}}
        return self.live

    def apply(
        self,
        manager: str,
        spec: Mapping[str, Any] | None = None,
        *,
        force: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        done = apply(write(manager), self.live, thing(spec, **more), force=force)
        return self.keep(done.object, done.managers)

    def put(
        self, manager: str, spec: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        value = thing(spec, **more)
        return self.keep(value, update_managed_fields(write(manager), self.live, value))

    @property
    def owners(self) -> dict[str, list[str]]:
        assert self.live is not None
        return owners(self.live["metadata"]["managedFields"])

    @property
    def spec(self) -> Any:
        assert self.live is not None
        return self.live.get("spec")


def test_a_creator_owns_what_it_set() -> None:
    """A creator owns the fields that it set, but not those that every object has."""
    server = Server()
    server.put("ann", {"replicas": 1}, metadata={"labels": {"a": "b"}})
    assert server.owners == {
        "ann/Update": [".metadata.labels", ".metadata.labels.a", ".spec.replicas"]
    }


def test_an_update_owns_what_it_changes() -> None:
    """The writer owns changed and added fields; removed ones have no owner, the rest stays."""
    server = Server()
    server.put("ann", {"replicas": 1, "paused": True, "args": ["x"]})
    server.put("ben", {"replicas": 2, "paused": True, "nested": {"deep": {"x": 1}}})
    assert server.owners == {
        "ann/Update": [".spec.paused"],
        "ben/Update": [
            ".spec.nested",
            ".spec.replicas",
            ".spec.nested.deep",
            ".spec.nested.deep.x",
        ],
    }


def test_an_update_without_effect_keeps_every_entry() -> None:
    """An update without changes keeps the entries, with their times."""
    server = Server()
    live = server.put("ann", {"replicas": 1})
    again = update_managed_fields(write("ben", 5), live, {**live, "metadata": {"name": "t"}})
    assert again == live["metadata"]["managedFields"]
    assert again[0] is live["metadata"]["managedFields"][0]


def test_untouched_entries_are_passed_on_as_they_are() -> None:
    """The entry of a manager whose fields do not change is not copied."""
    server = Server()
    live = server.put("ann", {"replicas": 1})
    new = thing({"replicas": 1}, metadata={"labels": {"a": "b"}})
    entries = update_managed_fields(write("ben", 1), live, new)
    assert entries[0] is live["metadata"]["managedFields"][0]


def test_status_and_main_resource_do_not_own_each_others_fields() -> None:
    """A write through a subresource owns only fields of that subresource."""
    server = Server()
    live = server.put("ann", {"replicas": 1}, status={"phase": "x"})
    assert server.owners == {"ann/Update": [".spec.replicas"]}
    new = thing({"replicas": 5}, status={"phase": "y"})
    entries = update_managed_fields(write("ben", subresource="status"), live, new)
    assert owners(entries)["ben/Update"] == [".status.phase"]
    assert entries[1]["subresource"] == "status"


@pytest.mark.parametrize("sent", [[], [{}]])
def test_managers_can_be_reset(sent: list[ManagedFieldsEntry]) -> None:
    """An empty list, or a list of one empty entry, resets; afterwards only apply tracks again."""
    server = Server()
    live = server.put("ann", {"replicas": 1})
    new = thing({"replicas": 1}, metadata={"managedFields": sent})
    assert update_managed_fields(write("ben"), live, new) == []
    bare = thing({"replicas": 1})
    assert update_managed_fields(write("ben"), bare, thing({"replicas": 2})) == []
    server.live = bare
    server.apply("cat", {"replicas": 1})
    assert server.owners == {
        "cat/Apply": [".spec.replicas"],
        "before-first-apply/Update": [".spec.replicas"],
    }


def test_sent_managers_count_only_through_the_main_resource() -> None:
    """A client may set the owners, but not through a subresource and not with invalid entries."""
    server = Server()
    live = server.put("ann", {"replicas": 1})
    claim = {**live["metadata"]["managedFields"][0], "manager": "eve"}
    new = thing({"replicas": 1}, metadata={"managedFields": [claim]})
    assert owners(update_managed_fields(write("ben"), live, new)) == {
        "eve/Update": [".spec.replicas"]
    }
    assert owners(update_managed_fields(write("ben", subresource="status"), live, new)) == {
        "ann/Update": [".spec.replicas"]
    }
    wrongs: list[ManagedFieldsEntry] = [
        {"operation": "x"},
        {"manager": 5},
        {"fieldsV1": {"x": {}}},
        {"time": []},
    ]
    for wrong in wrongs:
        nonsense = thing({"replicas": 1}, metadata={"managedFields": [{**claim, **wrong}]})
        assert owners(update_managed_fields(write("ben"), live, nonsense)) == {
            "ann/Update": [".spec.replicas"]
        }


def test_old_updaters_are_united_beyond_ten() -> None:
    """Of more than ten updaters the oldest are merged, so that objects stay small."""
    server = Server()
    for n in range(15):
        labels = {f"l{k}": "x" for k in range(n + 1)}
        value = thing({}, metadata={"labels": labels})
        server.keep(value, update_managed_fields(write(f"m{n:02}", n % 10), server.live, value))
    assert server.live is not None
    entries = server.live["metadata"]["managedFields"]
    assert len(entries) == 10
    assert "ancient-changes" in {entry["manager"] for entry in entries}
    owned = [path for paths in server.owners.values() for path in paths]
    assert sum(path.startswith(".metadata.labels.") for path in owned) == 15


def test_entries_are_in_the_stored_order() -> None:
    """Applies come first, then the order is by time and name; keys have the order of the real
    server.
    """
    server = Server()
    server.apply("zoe", {"replicas": 1})
    server.put("ann", {"replicas": 1, "paused": True})
    assert server.live is not None
    entries = server.live["metadata"]["managedFields"]
    assert [entry["manager"] for entry in entries] == ["zoe", "ann"]
    assert list(entries[1]) == [
        "manager",
        "operation",
        "apiVersion",
        "time",
        "fieldsType",
        "fieldsV1",
    ]
    assert encode(decode(entries)) == entries


def test_times_stay_when_nothing_else_changes() -> None:
    """An apply that would only change a time is not a write."""
    server = Server()
    live = server.apply("ann", {"replicas": 1})
    later = [{**entry, "time": TIME.format(9)} for entry in live["metadata"]["managedFields"]]
    new = {**live, "metadata": {**live["metadata"], "managedFields": later}}
    assert keep_unchanged_times(live, new) == live
    other = {**new, "spec": {"replicas": 2}}
    assert keep_unchanged_times(live, other) is other


@pytest.mark.parametrize(
    ("named", "agent", "manager"),
    [
        ("me", "kubectl/1", "me"),
        ("", "kubectl/v1.36 (linux)", "kubectl"),
        ("", "no slash", "no slash"),
        ("", "a\tb\x00c/1", "abc"),
        ("", "é" * 100, "é" * 64),
        ("", "", ""),
    ],
)
def test_the_manager_is_named_or_the_user_agent(named: str, agent: str, manager: str) -> None:
    """Without a name the User-Agent up to its slash is used, printable and at most 128 bytes."""
    assert manager_name(named, agent) == manager


def test_apply_names_all_conflicts_at_once() -> None:
    """A conflict has a cause per field and manager, with the real server's messages."""
    server = Server()
    server.apply("ann", {"replicas": 1, "ports": [{"port": 80, "name": "a"}]})
    server.put("ben", {"replicas": 1, "ports": [{"port": 80, "name": "a"}], "paused": True})
    with pytest.raises(Conflict) as refused:
        server.apply("cat", {"replicas": 2, "paused": False, "ports": [{"port": 80, "name": "b"}]})
    causes = [(cause.message, cause.field) for cause in refused.value.details.causes or ()]
    assert causes == [
        ('conflict with "ann"', ".spec.replicas"),
        ('conflict with "ann"', '.spec.ports[port=80,protocol="TCP"].name'),
        ('conflict with "ben" using v1', ".spec.paused"),
    ]
    assert refused.value.status.message == (
        'Apply failed with 3 conflicts: conflicts with "ann":\n'
        '- .spec.replicas\n- .spec.ports[port=80,protocol="TCP"].name\n'
        'conflicts with "ben" using v1:\n- .spec.paused'
    )
    with pytest.raises(Conflict) as conflict:
        server.apply("cat", {"replicas": 2})
    assert conflict.value.status.message == (
        'Apply failed with 1 conflict: conflict with "ann": .spec.replicas'
    )


def test_force_takes_over() -> None:
    """With force the field gets a new owner, and a manager without fields is removed."""
    server = Server()
    server.apply("ann", {"replicas": 1})
    server.apply("ben", {"replicas": 2}, force=True)
    assert server.owners == {"ben/Apply": [".spec.replicas"]}
    assert server.spec == {"replicas": 2}


def test_equal_values_are_shared() -> None:
    """Applying an equal value is no conflict; the field stays until its last owner removes it."""
    server = Server()
    server.apply("ann", {"replicas": 1, "paused": True})
    live = server.apply("ben", {"replicas": 1})
    assert "time" not in live["metadata"]["managedFields"][0], "nothing changed, so no time"
    server.apply("ann", {"paused": True})
    assert server.spec == {"replicas": 1, "paused": True}
    assert server.owners == {"ann/Apply": [".spec.paused"], "ben/Apply": [".spec.replicas"]}
    server.apply("ben")
    assert server.spec == {"paused": True}
    assert list(server.owners) == ["ann/Apply"]


def test_list_keys_are_filled_in_with_defaults() -> None:
    """A port without a protocol has the key of the TCP port."""
    server = Server()
    server.apply("ann", {"ports": [{"port": 80, "name": "a"}]})
    assert server.owners["ann/Apply"][0] == '.spec.ports[port=80,protocol="TCP"]'
    server.apply("ben", {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 8}]})
    assert server.spec == {"ports": [{"port": 80, "name": "a", "protocol": "TCP", "targetPort": 8}]}


@pytest.mark.parametrize(
    ("live", "config", "merged"),
    [
        ([1, 2, 3], [3, 1], [2, 3, 1]),
        ([1, 2, 3], [2], [1, 2, 3]),
        ([1, 2], [3], [1, 2, 3]),
        ([1, 2], [3, 1], [3, 1, 2]),
        ([], [2, 1], [2, 1]),
        ([1, 2, 3, 4], [4, 5, 2], [1, 3, 4, 5, 2]),
    ],
)
def test_order_of_merged_lists(live: list[int], config: list[int], merged: list[int]) -> None:
    """Applied items have the applied order, others keep their position."""
    kind = Schema(shape="list", list_type="set", items=NUMBER)
    assert merge(kind, live, config) == merged


def test_an_item_not_applied_any_more_is_removed() -> None:
    """Leaving out a list item removes it, but not the fields that another manager owns in it."""
    server = Server()
    server.apply("ann", {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]})
    server.apply("ben", {"ports": [{"port": 81, "targetPort": 1}]})
    server.apply("ann", {"replicas": 3})
    assert server.spec == {"ports": [{"port": 81, "targetPort": 1}], "replicas": 3}


def test_atomic_values_have_one_owner() -> None:
    """An atomic map or list is replaced and owned as a whole."""
    server = Server()
    server.apply("ann", {"selector": {"a": "1", "b": "1"}, "args": ["x", "y"]})
    assert server.owners == {"ann/Apply": [".spec.args", ".spec.selector"]}
    with pytest.raises(Conflict):
        server.apply("ben", {"selector": {"a": "1"}})
    server.apply("ann", {"selector": {"b": "1"}, "args": ["y"]})
    assert server.spec == {"selector": {"b": "1"}, "args": ["y"]}


def test_an_applier_and_an_updater_of_one_name_are_two() -> None:
    """A manager is identified by name and operation."""
    server = Server()
    server.put("ann", {"replicas": 1})
    with pytest.raises(Conflict):
        server.apply("ann", {"replicas": 2})


def test_kubectl_may_take_over_from_client_side_apply() -> None:
    """Fields of the last-applied annotation do not conflict with kubectl itself."""
    recorded = '{"apiVersion":"v1","kind":"Thing","metadata":{"name":"t"},"spec":{"replicas":1}}'
    annotations = {LAST_APPLIED: recorded}
    server = Server()
    server.put("kubectl-client-side-apply", {"replicas": 1}, metadata={"annotations": annotations})
    with pytest.raises(Conflict):
        server.apply("ann", {"replicas": 2})
    live = server.apply("kubectl", {"replicas": 2})
    assert server.owners["kubectl/Apply"] == [".spec.replicas"]
    assert '"spec":{"replicas":2}' in live["metadata"]["annotations"][LAST_APPLIED]


def test_kubectl_still_conflicts_with_what_changed_since() -> None:
    """A field that was changed after client-side apply is a conflict."""
    recorded = '{"apiVersion":"v1","kind":"Thing","metadata":{"name":"t"},"spec":{"replicas":1}}'
    annotations = {LAST_APPLIED: recorded}
    server = Server()
    server.put("csa", {"replicas": 1}, metadata={"annotations": annotations})
    server.put("ben", {"replicas": 7}, metadata={"annotations": annotations})
    with pytest.raises(Conflict) as refused:
        server.apply("kubectl", {"replicas": 2})
    assert [cause.field for cause in refused.value.details.causes or ()] == [".spec.replicas"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nothing": 1}, ".spec.nothing: field not declared in schema"),
        ({"replicas": "1"}, ".spec.replicas: expected numeric (int or float), got str"),
        ({"args": {}}, ".spec.args: expected list, got {}"),
        ({"nested": []}, ".spec.nested: expected map, got []"),
        (
            {"ports": [{"port": 80}, {"port": 80, "protocol": "TCP"}]},
            '.spec.ports: duplicate entries for key [port=80,protocol="TCP"]',
        ),
        ({"ports": [None]}, ".spec.ports: element 0: associative list with keys may not have"),
    ],
)
def test_invalid_configurations_are_refused(spec: dict[str, Any], words: str) -> None:
    """The error for undeclared fields, wrong types or duplicates has the path."""
    with pytest.raises(SchemaViolation, match="failed to create typed patch object") as refused:
        Server().apply("ann", spec)
    assert words in str(refused.value)


def test_a_configuration_may_not_have_owners() -> None:
    """managedFields in an applied configuration, or another version, are bad requests."""
    with pytest.raises(BadRequest):
        Server().apply("ann", {}, metadata={"managedFields": []})
    with pytest.raises(BadRequest):
        apply(write("ann"), None, {**thing({}), "apiVersion": "v2"})


def test_managers_of_other_versions() -> None:
    """An entry of another version is compared in that version, and dropped with it."""
    older = record(**{**THING.fields, "spec": record(count=NUMBER)})

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "apiVersion": "v0", "spec": {"count": value["spec"]["replicas"]}}

    views = {"v0": VersionView(older, convert)}
    entry = {
        "manager": "ann",
        "operation": "Update",
        "apiVersion": "v0",
        "time": TIME.format(0),
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:count": {}}},
    }
    live = thing({"replicas": 1}, metadata={"managedFields": [entry]})
    writer = write("ben", view_at=views.get)
    assert update_managed_fields(writer, live, thing({"replicas": 1})) == [entry]
    assert list(owners(update_managed_fields(writer, live, thing({"replicas": 2})))) == [
        "ben/Update"
    ]
    gone = write("ben", view_at={}.get)
    assert update_managed_fields(gone, live, thing({"replicas": 1})) == []


def test_a_schema_that_became_atomic_is_owned_whole() -> None:
    """Owners of parts of a field become owners of the field when it becomes atomic."""
    entry = {
        "manager": "ann",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:replicas": {}, "f:selector": {"f:a": {}, "f:b": {}}}},
    }
    live = thing({"selector": {"a": "1"}}, metadata={"managedFields": [entry]})
    entries = update_managed_fields(
        write("ben", custom=True), live, thing({"selector": {"a": "1"}})
    )
    assert owners(entries) == {"ann/Apply": [".spec.replicas", ".spec.selector"]}


def test_untyped_values_are_maps_of_maps_with_atomic_lists() -> None:
    """Preserved unknown fields have owners down to their leaves; true is not 1."""
    old = thing({"free": {"a": {"b": 1}, "l": [1], "t": 1}})
    new = thing({"free": {"a": {"b": 1, "c": 2}, "l": [2], "t": True}})
    comparison = compare(THING, old, new, strict=True)
    assert [format_path(p) for p in paths(comparison.added)] == [".spec.free.a.c"]
    assert [format_path(p) for p in paths(comparison.modified)] == [".spec.free.l", ".spec.free.t"]
    turned = compare(THING, old, thing({"free": {"a": 5, "l": [1], "t": 1}}))
    assert [format_path(p) for p in paths(turned.modified)] == [".spec.free.a"]
    assert [format_path(p) for p in paths(turned.removed)] == [".spec.free.a.b"]


def filled(value: Any) -> Any:
    """The value without empty containers, which are tested separately."""
    if not isinstance(value, dict):
        return value
    members = {key: filled(sub) for key, sub in value.items()}
    return {key: sub for key, sub in members.items() if sub not in ({}, [])}


NUMBERS = st.integers(0, 1)
PORTS = st.fixed_dictionaries(
    {"port": st.integers(80, 82)},
    optional={"name": st.sampled_from("ab"), "targetPort": NUMBERS},
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": NUMBERS,
        "paused": st.booleans(),
        "selector": st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2),
        "args": st.lists(st.sampled_from("xy"), max_size=2),
        "ports": st.lists(PORTS, max_size=3, unique_by=lambda port: port["port"]),
        "nested": st.fixed_dictionaries(
            {}, optional={"deep": st.fixed_dictionaries({}, optional={"x": NUMBERS, "y": NUMBERS})}
        ),
    },
).map(filled)


@given(SPECS, SPECS)
def test_comparison_tells_every_difference(old: dict[str, Any], new: dict[str, Any]) -> None:
    """The three sets are disjoint, empty for equal values, and swap with the sides."""
    there = compare(THING, thing(old), thing(new))
    back = compare(THING, thing(new), thing(old))
    sets = [set(paths(field_set)) for field_set in there]
    assert not (sets[0] & sets[1] or sets[0] & sets[2] or sets[1] & sets[2])
    assert there.added == back.removed
    assert there.modified == back.modified
    if old == new:
        assert not any(there)


@given(SPECS, SPECS)
def test_merging_keeps_both(live: dict[str, Any], config: dict[str, Any]) -> None:
    """After a merge every applied field has its value, and nothing else is lost."""
    spec = THING.fields["spec"]
    merged = merge(spec, live, config)
    assert merge(spec, merged, config) == merged
    ours = set(paths(fields_of(spec, merged)))
    assert set(paths(fields_of(spec, config))) <= ours
    changed = compare(spec, live, merged)
    assert not changed.removed or any(key in config for key in ("selector", "args"))


@given(SPECS)
def test_removing_every_field_leaves_nothing(value: dict[str, Any]) -> None:
    """Removing all fields of a value leaves only empty containers."""
    spec = THING.fields["spec"]
    assert not values_in(remove(spec, value, fields_of(spec, value)))


def values_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for sub in value.values() for leaf in values_in(sub)]
    return [] if value is None else [value]


@given(st.lists(st.tuples(st.sampled_from(["ann", "ben"]), SPECS), min_size=1, max_size=5))
def test_appliers_own_their_last_configuration(steps: list[tuple[str, dict[str, Any]]]) -> None:
    """The last manager that applied with force owns exactly its configuration."""
    server = Server()
    for manager, spec in steps:
        server.apply(manager, spec, force=True)
    manager, spec = steps[-1]
    mine = [format_path(p) for p in paths(fields_of(THING, {"spec": spec}))]
    assert server.owners.get(f"{manager}/Apply", []) == mine
    assert not compare(
        THING, thing(server.spec or {}), thing(merge(THING.fields["spec"], server.spec or {}, spec))
    ).modified
