"""Strategic merge patch: directives, orders and errors.

Results in the tables are those of Kubernetes 1.36.4's own implementation on the same input.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import ParseError, PatchFailed
from zonewise.embedded.machinery.patch import strategic
from zonewise.embedded.machinery.patch.strategic import PatchSchema
from zonewise.embedded.machinery.schema.definitions import Definitions, types_table


@dataclass
class Known:
    """A minimal schema."""

    fields: dict[str, Known] = field(default_factory=dict)
    items: Known | None = None
    merge: bool = False
    replace: bool = False
    merge_key: str = ""

    def child(self, name: str) -> Known | None:
        """The type of a member."""
        return self.fields.get(name)


def merged(key: str, **fields: Known) -> Known:
    """A merged list; without a key, of plain values."""
    return Known(items=Known(fields), merge=True, merge_key=key)


PLAIN = Known()
POD = Known(
    {
        "metadata": Known({"finalizers": merged(""), "labels": PLAIN}),
        "spec": Known(
            {
                "containers": merged(
                    "name",
                    env=merged("name"),
                    ports=merged("containerPort"),
                    args=Known(items=PLAIN),
                ),
                "tolerations": Known(items=PLAIN),
                "volumes": merged("name"),
                "strategy": Known({"type": PLAIN, "rollingUpdate": PLAIN}),
                "selector": Known(replace=True),
            }
        ),
    }
)
SCHEMA: PatchSchema = POD


def spec(**fields: Any) -> dict[str, Any]:
    """A document or patch of fields below spec."""
    return {"spec": fields}


def items(names: str) -> list[dict[str, Any]]:
    """Items with only a name."""
    return [{"name": name} for name in names]


def names(document: dict[str, Any]) -> str:
    """The names of the containers, in order."""
    return "".join(item["name"] for item in document["spec"]["containers"])


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [
        # objects: merge, delete members, replace, empty
        (spec(a=1), spec(b=2), spec(a=1, b=2)),
        (spec(a=1, b=2), spec(a=None), spec(b=2)),
        (spec(a=1), spec(zz=None), spec(a=1)),
        (spec(a={"b": 1}), spec(a=2), spec(a=2)),
        (spec(a=[1]), spec(a={"b": None, "c": 1}), spec(a={"c": 1})),
        (spec(), spec(a={"b": {"c": None}}), spec(a={"b": {}})),
        (spec(a={"b": 1}), spec(a={"$patch": "replace", "c": 2}), spec(a={"c": 2})),
        (spec(a={"b": 1}), spec(a={"$patch": "delete"}), spec(a={})),
        (spec(), spec(a={"$patch": "replace", "c": 2}), spec()),
        (spec(), spec(a={"$patch": "delete"}), spec()),
        (spec(a=1), {"$patch": "delete"}, {}),
        (spec(selector={"a": 1}), spec(selector={"b": 2, "c": None}), spec(selector={"b": 2})),
        (spec(selector={"a": 1}), spec(selector=None), spec()),
        (spec(a=1), {"$patch": "replace", "x": 1}, {"x": 1}),
        # lists: merged by key, replaced where atomic or unknown
        (
            spec(containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]),
            spec(containers=[{"name": "b", "image": "2"}]),
            spec(containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]),
        ),
        (
            spec(containers=[{"name": "a", "env": [{"name": "x", "value": "1"}]}]),
            spec(containers=[{"name": "a", "env": [{"name": "y", "value": "2"}]}]),
            spec(
                containers=[
                    {"name": "a", "env": [{"name": "y", "value": "2"}, {"name": "x", "value": "1"}]}
                ]
            ),
        ),
        (
            spec(containers=[{"name": "a", "ports": [{"containerPort": 80, "name": "h"}]}]),
            spec(containers=[{"name": "a", "ports": [{"containerPort": 80, "name": "w"}]}]),
            spec(containers=[{"name": "a", "ports": [{"containerPort": 80, "name": "w"}]}]),
        ),
        (
            spec(containers=[{"name": "a", "args": ["1", "2"]}]),
            spec(containers=[{"name": "a", "args": ["3"]}]),
            spec(containers=[{"name": "a", "args": ["3"]}]),
        ),
        (
            spec(tolerations=[{"key": "a"}]),
            spec(tolerations=[{"key": "b"}]),
            spec(tolerations=[{"key": "b"}]),
        ),
        (spec(unknown=[1, 2]), spec(unknown=[3]), spec(unknown=[3])),
        (spec(containers=items("ab")), spec(containers=[]), spec(containers=items("ab"))),
        (spec(), spec(containers=items("ab")), spec(containers=items("ab"))),
        # items: delete, replace
        (
            spec(containers=items("abc")),
            spec(containers=[{"name": "b", "$patch": "delete"}]),
            spec(containers=items("ac")),
        ),
        (
            spec(containers=items("abc")),
            spec(containers=[{"name": "z", "$patch": "delete"}]),
            spec(containers=items("abc")),
        ),
        (
            spec(containers=items("abc")),
            spec(containers=[{"$patch": "replace"}, {"name": "z"}]),
            spec(containers=items("z")),
        ),
        (
            spec(containers=items("abc")),
            spec(containers=[{"$patch": "replace"}]),
            spec(containers=[]),
        ),
        (
            spec(),
            spec(containers=[{"name": "a"}, {"name": "b", "$patch": "delete"}]),
            spec(containers=items("a")),
        ),
        # plain values
        (
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"finalizers": ["c", "b"]}},
            {"metadata": {"finalizers": ["c", "a", "b"]}},
        ),
        (
            {"metadata": {"finalizers": ["a", "b", "c"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", "c", "z"]}},
            {"metadata": {"finalizers": ["b"]}},
        ),
        (
            {"metadata": {}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
            {"metadata": {}},
        ),
        # retainKeys
        (
            spec(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}),
            spec(strategy={"$retainKeys": ["type"], "type": "Recreate"}),
            spec(strategy={"type": "Recreate"}),
        ),
        (
            spec(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}),
            spec(strategy={"$retainKeys": ["type"]}),
            spec(strategy={"type": "RollingUpdate"}),
        ),
        (
            spec(strategy={"type": "x", "rollingUpdate": {}}),
            spec(strategy={"$retainKeys": ["type"], "type": "y", "rollingUpdate": None}),
            spec(strategy={"type": "y"}),
        ),
    ],
)
def test_patches_do_what_a_server_does(
    document: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Each directive and each kind of list gives a real API server's result."""
    original = copy.deepcopy((document, patch))
    assert strategic.apply(document, patch, SCHEMA) == expected
    assert (document, patch) == original


@pytest.mark.parametrize(
    ("before", "patch", "order", "after"),
    [
        ("ab", "c", None, "cab"),
        ("ab", "bc", None, "abc"),
        ("ab", "cb", None, "cab"),
        ("ab", "ba", None, "ba"),
        ("abc", "ca", None, "bca"),
        ("abcd", "xc", None, "xabcd"),
        ("abcd", "xcy", None, "xabcyd"),
        ("", "ba", None, "ba"),
        ("ab", "c", "abc", "abc"),
        ("ab", "c", "cab", "cab"),
        ("ab", "c", "acb", "acb"),
        ("ab", "", "ba", "ba"),
        ("abcd", "", "dba", "cdba"),
        ("abcd", "x", "dxa", "bcdxa"),
        ("ab", "c", "ac", "acb"),
        ("ab", "c", "ca", "cab"),
        ("ab", "xy", "xby", "xaby"),
    ],
)
def test_order_of_merged_lists(before: str, patch: str, order: str | None, after: str) -> None:
    """New items come first unless the patch or $setElementOrder puts them elsewhere."""
    body: dict[str, Any] = {"containers": items(patch)} if patch else {}
    if order is not None:
        body["$setElementOrder/containers"] = items(order)
    result = strategic.apply(spec(containers=items(before)), {"spec": body}, SCHEMA)
    assert names(result) == after


def test_what_kubectl_apply_sends() -> None:
    """One patch of kubectl apply orders, deletes and changes items."""
    document = spec(
        containers=[
            {"name": "app", "image": "1", "env": [{"name": "A", "value": "1"}, {"name": "B"}]},
            {"name": "sidecar", "image": "1"},
        ]
    )
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "new"}, {"name": "app"}],
            "containers": [
                {"name": "new", "image": "3"},
                {
                    "$setElementOrder/env": [{"name": "C"}, {"name": "A"}],
                    "name": "app",
                    "image": "2",
                    "env": [{"name": "C", "value": "3"}, {"name": "B", "$patch": "delete"}],
                },
                {"name": "sidecar", "$patch": "delete"},
            ],
        }
    }
    assert strategic.apply(document, patch, SCHEMA) == spec(
        containers=[
            {"name": "new", "image": "3"},
            {
                "name": "app",
                "image": "2",
                "env": [{"name": "C", "value": "3"}, {"name": "A", "value": "1"}],
            },
        ]
    )


def test_plain_values_can_be_put_in_order() -> None:
    """One patch can merge, delete and order a list of finalizers."""
    patch = {
        "metadata": {
            "$setElementOrder/finalizers": ["c", "a"],
            "$deleteFromPrimitiveList/finalizers": ["b"],
            "finalizers": ["c"],
        }
    }
    document = {"metadata": {"finalizers": ["a", "b"]}}
    result = strategic.apply(document, patch, SCHEMA)
    assert result == {"metadata": {"finalizers": ["c", "a"]}}


def test_a_deletion_and_an_addition_of_the_same_value_adds_it() -> None:
    """A contradictory patch has one outcome, whatever the order of its members."""
    first = {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["a"]}
    two = dict(reversed(first.items()))
    for metadata in (first, two):
        result = strategic.apply({"metadata": {"finalizers": ["a"]}}, {"metadata": metadata}, POD)
        assert result == {"metadata": {"finalizers": ["a"]}}


def test_directives_in_added_items_are_not_stored() -> None:
    """An item that a patch adds has no $ members and no deleted parts."""
    patch = spec(
        containers=[
            {
                "name": "a",
                "image": None,
                "$retainKeys": ["name"],
                "$setElementOrder/env": items("x"),
                "env": [{"name": "x"}, {"name": "y", "$patch": "delete"}],
            }
        ]
    )
    expected = spec(containers=[{"name": "a", "env": items("x")}])
    assert strategic.apply(spec(containers=[]), patch, SCHEMA) == expected
    assert strategic.apply(spec(), patch, SCHEMA) == expected


def test_items_of_equal_key_are_changed_as_a_server_does() -> None:
    """If a document has a key twice, the first is merged and a deletion removes both."""
    document = spec(volumes=[{"name": "a", "x": 1}, {"name": "a", "x": 2}, {"name": "b"}])
    changed = strategic.apply(document, spec(volumes=[{"name": "a", "x": 3}]), SCHEMA)
    assert changed == spec(volumes=[{"name": "a", "x": 3}, {"name": "a", "x": 2}, {"name": "b"}])
    patch = spec(volumes=[{"name": "a", "$patch": "delete"}])
    assert strategic.apply(document, patch, SCHEMA) == spec(volumes=items("b"))


def test_true_is_not_one() -> None:
    """Plain values are compared by type and value."""
    document = {"metadata": {"finalizers": [1]}}
    result = strategic.apply(document, {"metadata": {"finalizers": [True]}}, SCHEMA)
    assert result["metadata"]["finalizers"] == [True, 1]
    assert [type(item) for item in result["metadata"]["finalizers"]] == [bool, int]


def test_merge_can_be_spelled_out() -> None:
    """$patch: merge is the default, in objects, known items and new items."""
    patch = spec(
        a={"$patch": "merge", "c": 2},
        containers=[{"name": "a", "$patch": "merge", "x": 1}, {"name": "b", "$patch": "merge"}],
    )
    result = strategic.apply(spec(a={"b": 1}, containers=items("a")), patch, SCHEMA)
    assert result == spec(a={"b": 1, "c": 2}, containers=[{"name": "a", "x": 1}, {"name": "b"}])


def test_the_table_of_a_real_server_is_a_schema() -> None:
    """With the built-in kinds containers merge, tolerations and taints are replaced."""
    definitions = Definitions(table=types_table().types)
    pod: PatchSchema = definitions.schema("io.k8s.api.core.v1.Pod")
    document = {"spec": {"containers": items("a"), "tolerations": [{"key": "x"}]}}
    patch = {"spec": {"containers": items("b"), "tolerations": [{"key": "y"}]}}
    assert strategic.apply(document, patch, pod) == {
        "spec": {"containers": items("ba"), "tolerations": [{"key": "y"}]}
    }
    node = definitions.schema("io.k8s.api.core.v1.Node")
    taints = spec(taints=[{"key": "b"}])
    assert strategic.apply(spec(taints=[{"key": "a"}]), taints, node) == taints
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    changed = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert strategic.apply(conditions, changed, node) == changed
    budget = definitions.schema("io.k8s.api.policy.v1.PodDisruptionBudget")
    old, new = {"matchLabels": {"a": "b"}}, {"matchLabels": {"c": "d"}}
    assert strategic.apply(spec(selector=old), spec(selector=new), budget) == spec(selector=new)


def test_without_a_schema_lists_are_replaced() -> None:
    """Without a schema a strategic merge is a JSON merge."""
    assert strategic.apply(spec(a=[1], b={"c": 1}), spec(a=[2], b={"d": 2}), None) == spec(
        a=[2], b={"c": 1, "d": 2}
    )


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"$patch": "x"}, "at the root: $patch is not one of replace, delete and merge: 'x'"),
        (spec(a={"$patch": None}), "spec.a: $patch is not one of"),
        (spec(containers=[{"name": "a", "$patch": "x"}]), "spec.containers: $patch is not one of"),
        (spec(a={"$retainKeys": "b"}), "spec.a: $retainKeys is not a list"),
        (spec(a={"$retainKeys": [1]}), "spec.a: $retainKeys is not a list of names"),
        (spec(a={"$retainKeys": ["b"], "c": 1}), "$retainKeys does not name 'c'"),
        ({"spec": {"$deleteFromPrimitiveList/a": 1}}, "$deleteFromPrimitiveList/a is not a list"),
        ({"spec": {"$deleteFromPrimitiveList/": []}}, "is not a list of values of a named field"),
        ({"spec": {"$setElementOrder/containers": 1}}, "$setElementOrder/containers is not a list"),
        ({"spec": {"$setElementOrder/": []}}, "is not a list for a named field"),
        (
            {
                "spec": {
                    "$setElementOrder/containers": items("ab"),
                    "containers": items("ba"),
                }
            },
            "item 'a' is not in the order of $setElementOrder/",
        ),
    ],
)
def test_a_malformed_directive_is_refused(patch: dict[str, Any], words: str) -> None:
    """An invalid directive is a ParseError with the field's path."""
    with pytest.raises(ParseError, match="strategic merge patch") as caught:
        strategic.apply(spec(a={"b": 1}, containers=items("a")), patch, SCHEMA)
    assert type(caught.value) is ParseError
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (spec(containers=[{"image": "x"}]), "spec.containers has an item without its key 'name'"),
        (spec(containers=["x"]), "spec.containers has an item without its key 'name'"),
        (spec(containers=[{"$patch": "delete"}]), "without its key 'name'"),
        (spec(containers=[{"name": {}}]), "spec.containers has an item that is not a plain value"),
        (
            spec(containers=[{"name": "a", "env": [{"value": "1"}]}]),
            "spec.containers[name=a].env has an item without its key 'name'",
        ),
        (
            {"metadata": {"finalizers": [["x"]]}},
            "metadata.finalizers has an item that is not a plain",
        ),
        (
            {"spec": {"$setElementOrder/containers": [], "containers": {}}},
            "spec.containers is not a list",
        ),
        (
            {"spec": {"$setElementOrder/containers": [{"image": "x"}]}},
            "spec.containers has an item without its key",
        ),
    ],
)
def test_errors_name_the_path(patch: dict[str, Any], words: str) -> None:
    """The error for items without a merge key has their path."""
    document = {
        "metadata": {"finalizers": ["f"]},
        "spec": {"containers": [{"name": "a", "env": [{"name": "x"}]}]},
    }
    with pytest.raises(PatchFailed) as caught:
        strategic.apply(document, patch, SCHEMA)
    assert words in str(caught.value)


def test_deep_patches_are_refused_not_crashed_on() -> None:
    """Nesting beyond the interpreter's stack is a ParseError."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ParseError, match="nested too deeply"):
        strategic.apply({}, deep, SCHEMA)


KEYS = st.sampled_from("abcd")


def containers(*, patch: bool) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Lists of containers of different names; in a patch also deletions."""
    members: dict[str, Any] = {
        "image": st.sampled_from(["1", "2"]),
        "env": st.lists(KEYS, unique=True, max_size=3).map(
            lambda keys: [{"name": key, "value": "v"} for key in keys]
        ),
        "args": st.lists(KEYS, max_size=2),
    }
    if patch:
        members["$patch"] = st.just("delete")
        members["image"] |= st.none()
    item = st.fixed_dictionaries({"name": KEYS}, optional=members)
    return st.lists(item, max_size=4, unique_by=lambda item: str(item["name"]))


DOCUMENTS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {}, optional={"finalizers": st.lists(KEYS, unique=True, max_size=4)}
        ),
        "spec": st.fixed_dictionaries(
            {}, optional={"containers": containers(patch=False), "a": st.integers(0, 3)}
        ),
    }
)
PATCHES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "finalizers": st.lists(KEYS, unique=True, max_size=4),
                "$deleteFromPrimitiveList/finalizers": st.lists(KEYS, max_size=2),
            },
        ),
        "spec": st.fixed_dictionaries(
            {}, optional={"containers": containers(patch=True), "a": st.none() | st.integers(0, 3)}
        ),
    }
)


@given(DOCUMENTS, PATCHES)
def test_a_second_time_changes_nothing(document: Any, patch: Any) -> None:
    """A strategic merge patch is idempotent: repeating a write after a lost answer is safe."""
    once = strategic.apply(document, patch, SCHEMA)
    assert strategic.apply(once, patch, SCHEMA) == once


@given(DOCUMENTS, PATCHES)
def test_inputs_stay_as_they_are_and_no_directive_stays(document: Any, patch: Any) -> None:
    """Inputs are unchanged, and no $ member is stored."""
    original = copy.deepcopy((document, patch))
    result = strategic.apply(document, patch, SCHEMA)
    assert (document, patch) == original
    assert "$" not in repr(result)


@given(DOCUMENTS, PATCHES)
def test_every_item_is_there_once(document: Any, patch: Any) -> None:
    """The result has the items of document and patch without the deleted ones, each once."""
    result = strategic.apply(document, patch, SCHEMA)
    before = [item["name"] for item in document["spec"].get("containers", [])]
    changes = patch["spec"].get("containers", [])
    gone = {item["name"] for item in changes if "$patch" in item}
    added = {item["name"] for item in changes if "$patch" not in item}
    after = [item["name"] for item in result["spec"].get("containers", [])]
    assert sorted(after) == sorted((set(before) - gone) | added)


@given(DOCUMENTS, PATCHES)
def test_both_orders_are_kept(document: Any, patch: Any) -> None:
    """Items of the patch have its order; items only the document has keep their own."""
    result = strategic.apply(document, patch, SCHEMA)
    after = [item["name"] for item in result["spec"].get("containers", [])]
    patched = [i["name"] for i in patch["spec"].get("containers", []) if "$patch" not in i]
    others = [
        item["name"]
        for item in document["spec"].get("containers", [])
        if item["name"] in after and item["name"] not in patched
    ]
    assert [name for name in after if name in patched] == patched
    assert [name for name in after if name not in patched] == others


@given(st.permutations("abcd"), st.permutations("abcd"), st.integers(0, 4))
def test_a_whole_order_is_obeyed(before: list[str], order: list[str], count: int) -> None:
    """When $setElementOrder names every item, the result has that order."""
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": name} for name in order],
            "containers": [{"name": name} for name in order if name in before[:count]],
        }
    }
    document = spec(containers=[{"name": name} for name in before])
    assert names(strategic.apply(document, patch, SCHEMA)) == "".join(order)
