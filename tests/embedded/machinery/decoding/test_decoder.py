"""Bodies are refused, warned of and accepted as by a real server (see tools/tables)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.tables.bodies import CUSTOM, LEASES, PODS, SCHEMA, SECRETS

from zonewise.api.text.jsontext import has_duplicates, read
from zonewise.embedded.machinery.crd.structural import compile_schema
from zonewise.embedded.machinery.decoding.decoder import (
    Decoded,
    NotJSON,
    NotYAML,
    WrongType,
    cannot_handle_message,
    decode,
    decode_custom,
    decode_value,
    decode_yaml,
    find_duplicates,
    strict_error_message,
    unrecognized_message,
    validate_required_and_enums,
)
from zonewise.embedded.machinery.schema.definitions import OBJECT_META, Definitions

DEFINITIONS = Definitions()
META = DEFINITIONS.schema(OBJECT_META)
KINDS = {
    PODS: ("Pod", "io.k8s.api.core.v1.Pod"),
    LEASES: ("Lease", "io.k8s.api.coordination.v1.Lease"),
    SECRETS: ("Secret", "io.k8s.api.core.v1.Secret"),
}
REFUSALS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("refusals.json").read_text())[
    "refusals"
]
POD = DEFINITIONS.schema("io.k8s.api.core.v1.Pod")


def decoded(refusal: dict[str, Any], raw: bytes) -> Decoded:
    """A recorded body as our server decodes it."""
    if refusal["path"] == CUSTOM:
        return decode_custom(compile_schema(SCHEMA, metadata=META), META, raw)
    kind = DEFINITIONS.schema(KINDS[refusal["path"]][1])
    if refusal["media"] == "application/yaml":
        return decode_yaml(kind, raw)
    return decode(kind, raw)


def describe(refusal: dict[str, Any]) -> tuple[str, list[str]]:
    """The message of a refusal under Strict, and the warnings, for a recorded body."""
    raw = refusal["body"].encode("latin-1")
    kind = "Sample" if refusal["path"] == CUSTOM else KINDS[refusal["path"]][0]
    try:
        outcome = decoded(refusal, raw)
    except (NotJSON, NotYAML) as error:
        return unrecognized_message(kind, raw, error), []
    except WrongType as error:
        return cannot_handle_message(kind, "v1", kind, str(error)), []
    if outcome.problems:
        return cannot_handle_message(
            kind, "v1", kind, strict_error_message(outcome.problems)
        ), list(outcome.problems)
    return "", []


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: repr(refusal["body"][-60:]))
def test_messages_are_those_of_a_real_server(refusal: dict[str, Any]) -> None:
    """A body is refused with the real server's message, or warned of with its warnings."""
    message, warnings = describe(refusal)
    assert message == refusal["message"]
    assert warnings == refusal["warnings"]


def test_a_valid_body_is_normalized() -> None:
    """Nulls, empty plain values and other spellings are normalized; pointer fields are kept."""
    body = {
        "kind": "Pod",
        "metadata": {"name": "a", "labels": {}, "creationTimestamp": None, "finalizers": []},
        "spec": {
            "hostNetwork": False,
            "activeDeadlineSeconds": None,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "x",
                    "command": [],
                    "env": [{"name": "A", "value": ""}],
                    "resources": {"limits": {"cpu": 0.1, "memory": "1024Mi"}},
                }
            ],
        },
        "status": {"startTime": "2026-01-01T02:00:00.5+02:00"},
    }
    value, problems = decode(POD, json.dumps(body).encode())
    assert problems == ()
    assert value == {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "x",
                    "env": [{"name": "A"}],
                    "resources": {"limits": {"cpu": "100m", "memory": "1Gi"}},
                }
            ],
        },
        "status": {"startTime": "2026-01-01T00:00:00Z"},
    }


def test_null_inside_lists_and_maps_is_the_zero_value() -> None:
    """As in Go, a null that is not a field becomes a zero value."""
    spec = {"nodeSelector": {"a": None}, "tolerations": [None]}
    value = decode(POD, json.dumps({"spec": spec}).encode()).value
    assert value == {"spec": {"nodeSelector": {"a": ""}, "tolerations": [{}]}}


def test_broken_text_is_repaired() -> None:
    """Bytes that are not UTF-8 and lone surrogates become U+FFFD."""
    assert decode(POD, b'{"metadata":{"name":"a\xff"}}').value == {"metadata": {"name": "a�"}}
    assert decode(POD, b'{"metadata":{"name":"\\ud800"}}').value == {"metadata": {"name": "�"}}


def test_unknown_fields_are_dropped_silently_with_ignore() -> None:
    """With fieldValidation=Ignore unknown fields are dropped and not reported."""
    body = b'{"metadata":{"name":"a","name":"b"},"foo":1}'
    assert decode(POD, body, strict=False) == ({"metadata": {"name": "b"}}, ())


def test_problems_are_bounded() -> None:
    """A body with thousands of unknown fields gets a bounded list of them."""
    body = json.dumps({f"x{n}": n for n in range(5000)}).encode()
    assert len(decode(POD, body).problems) == 100
    twice = b"{" + b",".join(b'"x%d":1,"x%d":2' % (n, n) for n in range(500)) + b"}"
    assert len(find_duplicates(twice)) == 100


def test_fields_behind_disabled_gates_are_dropped() -> None:
    """A field whose feature gate is off is dropped without a warning."""
    body = b'{"spec":{"schedulingGroup":{"podGroupName":"a"}}}'
    assert decode(POD, body) == ({"spec": {}}, ())


def test_deep_nesting_is_refused() -> None:
    """Bodies that are nested too deeply are refused, wherever they are nested."""
    for opening, closing in ((b'{"a":', b"}"), (b"[", b"]")):
        body = b'{"metadata":' + opening * 5000 + b"1" + closing * 5000 + b"}"
        with pytest.raises(NotJSON, match="exceeded max depth"):
            decode(POD, body)


@pytest.mark.parametrize("odd", [b"1e400", b'"\xff"'])
@pytest.mark.parametrize("depth", [250, 600, 900])
def test_deep_nesting_is_refused_of_bodies_that_are_read_slowly(depth: int, odd: bytes) -> None:
    """Deep nesting is also refused in bodies with invalid UTF-8 or huge numbers."""
    body = b'{"metadata":' * depth + odd + b"}" * depth
    with pytest.raises(NotJSON, match="exceeded max depth"):
        decode(POD, body)


def test_numbers_no_float_holds_are_refused() -> None:
    """Numbers beyond float64 are refused, in custom resources and in typed fields."""
    kind = compile_schema(SCHEMA, metadata=META)
    for body in (b'{"spec":{"free":[1e400]}}', b'{"spec":{"free":{"x":-1e400}}}'):
        with pytest.raises(NotJSON, match=r"cannot unmarshal number -?1e400 into .* float64"):
            decode_custom(kind, META, body)
    with pytest.raises(WrongType, match=r"1e400 into Go struct field .* of type int64"):
        decode(POD, b'{"spec":{"terminationGracePeriodSeconds":1e400}}')


def test_years_outside_of_python_are_refused() -> None:
    """The year 0, which Go accepts, is refused and not a failure."""
    body = b'{"metadata":{"creationTimestamp":"0000-01-01T00:00:00Z"}}'
    with pytest.raises(WrongType):
        decode(POD, body)


def test_custom_resources_keep_what_their_schema_allows() -> None:
    """Nulls become defaults, stay or are dropped by the schema; numbers are unchanged."""
    kind = compile_schema(SCHEMA, metadata=META)
    spec = {
        "number": None,
        "maybe": None,
        "given": None,
        "either": None,
        "list": [{"x": None}],
        "free": [1, {"x": None}],
    }
    body = {"metadata": {"name": "a", "annotations": None}, "spec": spec}
    assert decode_custom(kind, META, json.dumps(body).encode()) == (
        {
            "metadata": {"name": "a"},
            "spec": {
                "maybe": None,
                "given": "dd",
                "either": None,
                "list": [{"x": "dx"}],
                "free": [1, {"x": None}],
            },
        },
        (),
    )


def test_schema_errors_are_those_of_a_real_server() -> None:
    """Required fields and enums are validated where a real server validates them."""
    kind = DEFINITIONS.schema("io.k8s.api.networking.v1.Ingress")
    path = {"backend": {"service": {"name": "a", "port": {"number": 1}}}, "pathType": "Bogus"}
    value = {"spec": {"rules": [{"http": {"paths": [path, {**path, "pathType": ""}]}}]}}
    assert [(fault.reason, fault.field) for fault in validate_required_and_enums(kind, value)] == [
        ("FieldValueNotSupported", "spec.rules[0].http.paths[0].pathType"),
        ("FieldValueRequired", "spec.rules[0].http.paths[1].pathType"),
    ]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)
FIELDS = sorted({"metadata", "spec", "containers", "name", "labels", "resources", "volumes", "x"})
POD_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "1", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=25,
)


@given(JSON_VALUES | POD_LIKE)
def test_any_json_is_accepted_or_refused(value: Any) -> None:
    """No JSON makes decoding raise another exception."""
    try:
        decode(POD, json.dumps(value).encode())
    except (NotJSON, WrongType):
        return


@given(st.binary(max_size=60))
def test_any_bytes_are_accepted_or_refused(raw: bytes) -> None:
    """No bytes make decoding raise another exception."""
    for read_body in (decode, decode_yaml):
        try:
            read_body(POD, raw)
        except (NotJSON, NotYAML, WrongType):
            continue


@given(POD_LIKE)
def test_normalizing_is_idempotent(value: Any) -> None:
    """What was accepted once is accepted again, unchanged and without problems."""
    if not isinstance(value, dict):
        return
    try:
        once = decode_value(POD, copy.deepcopy(value)).value
    except WrongType:
        return
    assert decode_value(POD, copy.deepcopy(once)) == (once, ())


@given(st.lists(st.tuples(st.sampled_from('ab"\\é'), st.integers(0, 2)), max_size=4), st.booleans())
def test_duplicates_are_never_missed(members: list[tuple[str, int]], numbered: bool) -> None:
    """The quick check for duplicate keys never misses one."""
    text = ",".join(f"{json.dumps(k, ensure_ascii=numbered)} :{v}" for k, v in members)
    raw = ("{" + text + "}").encode()
    repeated = len({name for name, _ in members}) < len(members)
    assert has_duplicates(raw, read(raw)) or not repeated
    assert bool(find_duplicates(raw)) == repeated
