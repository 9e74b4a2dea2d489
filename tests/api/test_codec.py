"""Decoding and encoding objects, tolerant of what real servers and people write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise import api
from zonewise.api import ParseError, codec
from zonewise.api.objects.coordination import LeaseSpec
from zonewise.api.objects.core import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    NodeSpec,
    Taint,
)
from zonewise.api.objects.pod import (
    Affinity,
    HostIP,
    NodeAffinity,
    PodSpec,
    PodStatus,
    Toleration,
    TopologySpreadConstraint,
)

SECRET = api.unstructured(api.Resource("", "v1", "Secret", "secrets"))


def test_an_object_is_read_from_what_a_server_sends() -> None:
    """Known fields are read, unknown ones skipped, nulls of Go's encoder accepted."""
    pod = api.decode(
        api.Pod,
        b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0","namespace":"shop",'
        b'"creationTimestamp":null,"managedFields":[{"manager":"x"}]},'
        b'"spec":{"nodeName":"n1","containers":[{"name":"c","command":["x"],'
        b'"resources":{"requests":{"cpu":"100m"}}}]},'
        b'"status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],'
        b'"conditions":[{"type":"Ready","status":"True","lastProbeTime":null,'
        b'"lastTransitionTime":"2026-01-02T03:04:05Z"}]}}',
    )
    assert pod.key == ("shop", "web-0")
    assert pod.spec.node_name == "n1"
    assert pod.spec.containers is not None
    assert pod.spec.containers[0].resources.requests == {"cpu": "100m"}
    assert pod.status.pod_ips[0].ip == "10.0.0.1"
    assert pod.status.conditions[0].type == "Ready"


def test_an_object_begins_with_what_it_is() -> None:
    """Encoded objects have apiVersion and kind first, and only fields that were set."""
    lease = api.Lease(
        metadata=api.ObjectMeta(name="l", namespace="kube-system"),
        spec=LeaseSpec(holder_identity="", lease_duration_seconds=15),
    )
    assert api.encode(lease) == (
        b'{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",'
        b'"metadata":{"name":"l","namespace":"kube-system"},'
        b'"spec":{"holderIdentity":"","leaseDurationSeconds":15}}'
    )
    assert api.encode(api.Node()) == b'{"apiVersion":"v1","kind":"Node"}'
    assert api.encode(Taint(key="k", effect="NoSchedule")) == (b'{"key":"k","effect":"NoSchedule"}')


def test_plain_values_are_lists_and_dictionaries() -> None:
    """Values for a patch are plain JSON values, without tuples."""
    node = api.Node(spec=NodeSpec(taints=(Taint(key="k"),)))
    assert api.to_builtins(node) == {
        "apiVersion": "v1",
        "kind": "Node",
        "spec": {"taints": [{"key": "k"}]},
    }


@pytest.mark.parametrize("kind", [api.Service, SECRET], ids=["typed", "unstructured"])
def test_lists_are_read_with_their_version(kind: type[Any]) -> None:
    """A page has items of the kind, the list's version and the token for the next page."""
    page = api.page_decoder(kind).decode(
        b'{"metadata":{"resourceVersion":"7","continue":"abc","remainingItemCount":3},'
        b'"items":[{"metadata":{"name":"a","namespace":"n"}}]}'
    )
    assert page.metadata.resource_version == "7"
    assert page.metadata.continue_ == "abc"
    assert page.metadata.remaining_item_count == 3
    assert [item.key for item in page.items or ()] == [("n", "a")]
    assert api.page_decoder(kind).decode(b'{"items":null}').items is None


def test_nulls_that_people_write_are_absent_values() -> None:
    """A null where the API has none, as from an empty YAML value, reads as absent."""
    service = api.convert(
        api.Service, {"metadata": {"name": "s", "labels": None}, "spec": {"ports": None}}
    )
    assert service.metadata.labels == {}
    assert service.spec.ports == ()
    decoded = api.decode(api.Service, b'{"metadata":{"annotations":null,"name":"s"}}')
    assert decoded.metadata == api.ObjectMeta(name="s")
    page = api.page_decoder(api.Service).decode(b'{"items":[{"spec":{"type":null}}]}')
    assert page.items == (api.Service(),)


@pytest.mark.parametrize("type_", [api.Pod, SECRET], ids=["typed", "unstructured"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff",
        b'{"metadata":',
        b"<!DOCTYPE html>",
        b'{"a":' * 100_000,
    ],
)
def test_anything_but_an_object_is_refused_in_a_sentence(type_: type[Any], data: bytes) -> None:
    """Anything but a JSON object is a ParseError that names the kind, and no other exception."""
    with pytest.raises(ParseError, match=f"^{type_.resource.kind}: "):
        api.decode(type_, data)


def test_a_wrong_type_says_where() -> None:
    """The error has the path of the field; in lists, the index of the item."""
    with pytest.raises(ParseError, match=r"^Pod: Expected `object`.*spec"):
        api.decode(api.Pod, b'{"spec":7}')
    with pytest.raises(ParseError, match=r"^list of Pod: .*items\[1\]\.spec\.nodeName"):
        api.page_decoder(api.Pod).decode(b'{"items":[{},{"spec":{"nodeName":1}}]}')
    with pytest.raises(ParseError, match=r"^Pod: .*spec"):
        api.convert(api.Pod, {"spec": []})
    with pytest.raises(ParseError, match=r"^Taint: "):
        api.decode(Taint, b"7")


def test_a_value_nested_too_deeply_is_refused() -> None:
    """A plain value beyond the interpreter's stack is a ParseError."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(ParseError, match="Pod: nested too deeply"):
        api.convert(api.Pod, {"metadata": {"labels": None}, "unknown": deep})


def test_a_bad_type_before_broken_json_is_refused() -> None:
    """A bad type before broken JSON is reported as broken JSON."""
    with pytest.raises(ParseError):
        api.decode(api.Pod, b'{"spec":7,')


def test_decoders_are_made_once() -> None:
    """The same type always has the same decoder."""
    assert codec.decoder(api.Pod) is codec.decoder(api.Pod)
    assert codec.page_decoder(api.Pod) is codec.page_decoder(api.Pod)


@given(st.binary(max_size=100))
def test_any_bytes_are_an_object_or_a_parse_error(data: bytes) -> None:
    """No bytes make the decoder raise another exception."""
    for type_ in (api.Pod, SECRET):
        try:
            api.decode(type_, data)
        except ParseError:
            continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "spec", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_bytes_and_plain_values_give_the_same_object(value: dict[str, Any]) -> None:
    """Decoding JSON and converting its plain value give the same object or both fail."""
    try:
        expected = api.convert(api.Deployment, value)
    except ParseError:
        with pytest.raises(ParseError):
            api.decode(api.Deployment, msgspec.json.encode(value))
    else:
        assert api.decode(api.Deployment, msgspec.json.encode(value)) == expected


def test_encoding_and_decoding_give_the_same_object() -> None:
    """An object with every part set is the same after a round trip."""
    pod = api.Pod(
        metadata=api.ObjectMeta(name="p", labels={"a": "b"}, finalizers=("f",)),
        spec=PodSpec(
            affinity=Affinity(
                node_affinity=NodeAffinity(
                    required=NodeSelector(
                        node_selector_terms=(
                            NodeSelectorTerm(
                                match_expressions=(
                                    NodeSelectorRequirement(
                                        key="zone", operator="In", values=("a",)
                                    ),
                                )
                            ),
                        )
                    )
                )
            ),
            tolerations=(Toleration(operator="Exists", toleration_seconds=0),),
            topology_spread_constraints=(
                TopologySpreadConstraint(max_skew=2, topology_key="zone"),
            ),
            priority=0,
        ),
        status=PodStatus(pod_ip="10.0.0.1", host_ips=(HostIP(ip="::1"),)),
    )
    encoded = api.encode(pod)
    assert api.decode(api.Pod, encoded) == pod
    for name in (b"requiredDuringSchedulingIgnoredDuringExecution", b"podIP", b"hostIPs"):
        assert name in encoded
