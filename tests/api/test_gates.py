"""Feature gates: defaults, dependencies, exclusions, and refusals in one sentence."""

from __future__ import annotations

import itertools

import pytest

from zonewise.api import ConfigError, FeatureGates
from zonewise.api.gates import GATES


def test_defaults_work_together() -> None:
    """Without any flag, hints and traffic policy are on and topology keys are off."""
    assert dict(FeatureGates()) == {
        "TopologyAwareHints": True,
        "ServiceTopology": False,
        "ServiceTrafficPolicy": True,
    }
    assert FeatureGates.parse("") == FeatureGates()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ServiceTopology=true,TopologyAwareHints=false", (False, True, True)),
        (" TopologyAwareHints=false , ServiceTrafficPolicy=false ", (False, False, False)),
        ("TopologyAwareHints=False,ServiceTopology=TRUE,", (False, True, True)),
        ("ServiceTopology=false,ServiceTopology=false", (True, False, True)),
    ],
)
def test_flags_are_read(text: str, expected: tuple[bool, bool, bool]) -> None:
    """Named gates are set, others keep their default."""
    gates = FeatureGates.parse(text)
    names = ("TopologyAwareHints", "ServiceTopology", "ServiceTrafficPolicy")
    assert tuple(gates[name] for name in names) == expected
    assert FeatureGates.parse(str(gates)) == gates
    assert hash(FeatureGates.parse(str(gates))) == hash(gates)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "ServiceTopology=true",
            "feature gates TopologyAwareHints and ServiceTopology exclude each other:"
            " set TopologyAwareHints=false or ServiceTopology=false; the annotation"
            " zonewise.io/topology-keys gives Services topology keys without a gate",
        ),
        (
            "ServiceTrafficPolicy=false",
            "feature gate TopologyAwareHints needs ServiceTrafficPolicy:"
            " set ServiceTrafficPolicy=true, or TopologyAwareHints=false as well",
        ),
        (
            "Nope=true",
            "unknown feature gate 'Nope': known are"
            " ServiceTopology, ServiceTrafficPolicy, TopologyAwareHints",
        ),
        ("ServiceTopology", "feature gate 'ServiceTopology' is not NAME=true or NAME=false"),
        ("A=yes", "feature gate 'A=yes' is not NAME=true or NAME=false"),
        ("=true", "feature gate '=true' is not NAME=true or NAME=false"),
        (
            "ServiceTopology=true,ServiceTopology=false",
            "feature gate ServiceTopology is given both as true and as false",
        ),
    ],
)
def test_invalid_gates_are_refused_in_one_sentence(text: str, sentence: str) -> None:
    """The error names the bad gate or combination and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        FeatureGates.parse(text)
    assert str(caught.value) == sentence


def test_exactly_the_sensible_combinations_are_accepted() -> None:
    """Hints need the traffic policy and exclude topology keys; other combinations are accepted."""
    for hints, keys, policy in itertools.product([True, False], repeat=3):
        settings = {
            "TopologyAwareHints": hints,
            "ServiceTopology": keys,
            "ServiceTrafficPolicy": policy,
        }
        if hints and (keys or not policy):
            with pytest.raises(ConfigError):
                FeatureGates(settings)
        else:
            assert dict(FeatureGates(settings)) == settings


def test_an_unknown_gate_is_an_error() -> None:
    """Asking for a gate that does not exist is a programming error, not "off"."""
    with pytest.raises(KeyError):
        _ = FeatureGates()["Nope"]
    assert len(FeatureGates()) == len(GATES)
    assert "TopologyAwareHints=true" in repr(FeatureGates())
