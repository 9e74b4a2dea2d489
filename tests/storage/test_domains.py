"""Domain labels: which are refused at start, their keys, and which keys of a request count."""

from __future__ import annotations

import pytest

from zonewise.api.errors import ConfigError
from zonewise.storage.domains import DomainLabels, parse_domain, parse_domain_labels

DRIVER = "csi.zonewise.io"
KEY = f"topology.{DRIVER}"
BOTH = parse_domain_labels("a.io/region; b.io/zone", DRIVER)


def test_order_and_names() -> None:
    """Labels keep their order, and their keys are the driver's with the label's name."""
    assert BOTH.labels == ("a.io/region", "b.io/zone")
    assert BOTH.names == ("region", "zone")
    assert parse_domain_labels("a.io/region, b.io/zone", DRIVER) == BOTH
    assert BOTH.to_wire({"zone": "z", "region": "r"}) == {f"{KEY}/region": "r", f"{KEY}/zone": "z"}
    assert list(BOTH.ordered({"zone": "z", "region": "r"})) == ["region", "zone"]


@pytest.mark.parametrize("text", ["", "  "])
def test_no_labels(text: str) -> None:
    """Without labels there is no topology, and any name of a driver is valid."""
    assert parse_domain_labels(text, "UPPER.example.Com").labels == ()


@pytest.mark.parametrize(
    ("text", "driver", "message"),
    [
        ("a/zone;a/zone", DRIVER, "'a/zone' is given twice"),
        ("a.io/zone;b.io/zone", DRIVER, "'a.io/zone' and 'b.io/zone' would both be"),
        ("a.io/Zone;b.io/zone", DRIVER, "would both be"),
        ("a/zone;", DRIVER, "'' is empty"),
        ("a/b/zone", DRIVER, "more than one '/'"),
        ("zo ne", DRIVER, "may have only letters"),
        ("x/" + "z" * 64, DRIVER, "more than 63"),
        ("x/takeover.a", DRIVER, "reserved for domains that are taken over"),
        ("a/zone", "d" * 55, "has 64 characters, allowed are 63"),
        ("a/zone", "Csi.Example.Com", "not a DNS name of lower case letters"),
        ("a/zone", "csi..example.com", "not a DNS name"),
        ("", "d" * 64, "is not a driver name"),
        ("", "csi.example.1", "ends with a letter"),
        ("", "", "is not a driver name"),
        ("", "csi example", "is not a driver name"),
    ],
)
def test_invalid_labels(text: str, driver: str, message: str) -> None:
    """Duplicate, colliding and invalid labels, and too long names, are refused at start."""
    with pytest.raises(ConfigError) as refused:
        parse_domain_labels(text, driver)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_longest_driver() -> None:
    """A driver whose prefix for keys has exactly 63 characters is accepted."""
    assert len(parse_domain_labels("a/zone", "d" * 54).prefix) == 63


def test_the_well_known_key_by_choice() -> None:
    """The well-known keys can be used as they are, without other keys."""
    zone = "topology.kubernetes.io/zone"
    labels = parse_domain_labels(zone, DRIVER, well_known=True)
    assert labels.to_wire({"zone": "a"}) == {zone: "a"}
    assert labels.segments_of({zone: "a"}) == {"zone": "a"}
    assert labels.segments_of({f"{KEY}/zone": "a"}) == {"zone": "a"}
    with pytest.raises(ConfigError, match="one prefix"):
        parse_domain_labels(f"{zone};example.com/rack", DRIVER, well_known=True)


def test_keys_that_count() -> None:
    """Keys of a request count with the driver's prefix or as the node's label; others do not."""
    term = {f"{KEY}/zone": "a", "a.io/region": "r", "kubernetes.io/hostname": "n", "zone": "x"}
    assert BOTH.segments_of(term) == {"region": "r", "zone": "a"}
    assert BOTH.segments_of({"b.io/zone": "x", f"{KEY}/zone": "a"}) == {"zone": "a"}
    assert BOTH.segments_of({"topology.other.io/zone": "a", "c.io/zone": "b"}) == {}
    assert BOTH.segments_of({}) == {}
    assert parse_domain_labels("zone", DRIVER).segments_of({"zone": "a"}) == {"zone": "a"}


def test_nodes() -> None:
    """A node's domain follows from its labels; the error names a missing or empty one."""
    assert BOTH.segments_of_node({"a.io/region": "r", "b.io/zone": "z", "c": "d"}) == {
        "region": "r",
        "zone": "z",
    }
    assert BOTH.missing_labels({"a.io/region": "r", "b.io/zone": ""}) == ("b.io/zone",)
    assert BOTH.missing_labels({}) == BOTH.labels


def test_names_of_labels() -> None:
    """A label may be given by its name, as the node has it, or with the driver's prefix."""
    for text in ("zone", "b.io/zone", f"{KEY}/zone"):
        assert BOTH.name_of(text) == "zone"
    for text in ("a.io/zone", "Zone", "rack", ""):
        assert BOTH.name_of(text) is None


def test_a_domain() -> None:
    """A node's domain can be configured, by labels or their names, in any order."""
    parsed = parse_domain(" b.io/zone=a ; region=r1", BOTH)
    assert list(parsed.items()) == [("region", "r1"), ("zone", "a")]
    assert parse_domain("", DomainLabels(DRIVER)) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no value for 'region' and 'zone'"),
        ("region=r1", "no value for 'zone'"),
        ("region=r1;zone=", "is empty"),
        ("region=r1;zone=a b", "may have only letters"),
        ("region=r1;zone=" + "z" * 64, "more than 63"),
        ("region=r1;zone=-a", "must begin and end"),
        ("region=r1;zone=a;zone=b", "'zone' is given twice"),
        ("region=r1;rack=7;zone=a", "'rack' is not one of --domain-labels"),
        ("r1", "not of the form NAME=VALUE"),
    ],
)
def test_invalid_domains(text: str, message: str) -> None:
    """A missing, invalid, unknown or repeated domain is refused at start."""
    with pytest.raises(ConfigError) as refused:
        parse_domain(text, BOTH)
    assert message in str(refused.value)


def test_a_domain_without_labels() -> None:
    """A configured domain without domain labels is an error."""
    with pytest.raises(ConfigError, match="needs --domain-labels"):
        parse_domain("zone=a", DomainLabels(DRIVER))
