"""Functions that Kubernetes adds: quantities, URLs, addresses, semantic versions, formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from zonewise.api.errors import ParseError
from zonewise.api.values import quantity
from zonewise.api.values.numbers import parse_natural
from zonewise.embedded.machinery.cel.library import Function, declare
from zonewise.embedded.machinery.cel.values import (
    INT,
    CelAddress,
    CelCIDR,
    CelFormat,
    CelQuantity,
    CelURL,
    EvaluationError,
    Optional,
    Semver,
)
from zonewise.embedded.machinery.schema import formats


def parse_quantity(text: str) -> CelQuantity:
    """Parse a quantity."""
    try:
        if text != text.strip():
            raise ParseError("quantities have no spaces around them")
        return CelQuantity(quantity.value(text))
    except ParseError as error:
        raise EvaluationError(str(error)) from None


@declare("quantity(string) -> quantity")
def _(a: str) -> CelQuantity:
    return parse_quantity(a)


@declare("isQuantity(string) -> bool")
def _(a: str) -> bool:
    try:
        parse_quantity(a)
    except EvaluationError:
        return False
    return True


@declare("sign(quantity) -> int")
def _(a: CelQuantity) -> int:
    return (a.value > 0) - (a.value < 0)


@declare("quantity::isGreaterThan(quantity) -> bool")
def _(a: CelQuantity, b: CelQuantity) -> bool:
    return a.value > b.value


@declare("quantity::isLessThan(quantity) -> bool")
def _(a: CelQuantity, b: CelQuantity) -> bool:
    return a.value < b.value


@declare("quantity::compareTo(quantity) -> int")
def _(a: CelQuantity, b: CelQuantity) -> int:
    return (a.value > b.value) - (a.value < b.value)


@declare("quantity::asApproximateFloat() -> double")
def _(a: CelQuantity) -> float:
    return float(a.value)


@declare("quantity::isInteger() -> bool")
def _(a: CelQuantity) -> bool:
    return a.value.denominator == 1 and a.value.numerator in INT


@declare("quantity::asInteger() -> int")
def _(a: CelQuantity) -> int:
    if a.value.denominator != 1 or a.value.numerator not in INT:
        raise EvaluationError("cannot convert value to integer")
    return a.value.numerator


@declare("quantity::add(quantity) -> quantity", "quantity::add(int) -> quantity")
def _(a: CelQuantity, b: CelQuantity | int) -> CelQuantity:
    return CelQuantity(a.value + (b.value if isinstance(b, CelQuantity) else Fraction(b)))


@declare("quantity::sub(quantity) -> quantity", "quantity::sub(int) -> quantity")
def _(a: CelQuantity, b: CelQuantity | int) -> CelQuantity:
    return CelQuantity(a.value - (b.value if isinstance(b, CelQuantity) else Fraction(b)))


def parse_url(text: str) -> CelURL:
    """Parse a URL that is absolute or begins with a slash."""
    if not formats.is_uri(text):
        raise EvaluationError(f'parse "{text}": invalid URI for request')
    return CelURL(text)


@declare("url(string) -> url")
def _(a: str) -> CelURL:
    return parse_url(a)


@declare("isURL(string) -> bool")
def _(a: str) -> bool:
    return formats.is_uri(a)


@declare("url::getScheme() -> string")
def _(a: CelURL) -> str:
    return urlsplit(a.text).scheme


@declare("url::getHost() -> string")
def _(a: CelURL) -> str:
    return urlsplit(a.text).netloc.rpartition("@")[2]


@declare("url::getHostname() -> string")
def _(a: CelURL) -> str:
    host = urlsplit(a.text).netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


@declare("url::getPort() -> string")
def _(a: CelURL) -> str:
    host = urlsplit(a.text).netloc.rpartition("@")[2].rpartition("]")[2]
    return host.rpartition(":")[2] if ":" in host else ""


@declare("url::getEscapedPath() -> string")
def _(a: CelURL) -> str:
    return urlsplit(a.text).path


@declare("url::getQuery() -> map(string, list(string))")
def _(a: CelURL) -> dict[str, list[str]]:
    return parse_qs(urlsplit(a.text).query, keep_blank_values=True)


def parse_address(text: str) -> CelAddress:
    """Parse an IP address; IPv4-mapped ones and those with a zone are refused."""
    try:
        if "%" in text:
            raise EvaluationError(f"IP Address with zone value is not allowed: {text}")
        value = ip_address(text)
    except ValueError:
        raise EvaluationError(
            f'IP Address "{text}" parse error during conversion from string'
        ) from None
    if isinstance(value, IPv6Address) and value.ipv4_mapped is not None:
        raise EvaluationError(f"IPv4-mapped IPv6 address is not allowed: {text}")
    return CelAddress(value)


def _parses(make: Callable[[str], Any]) -> Function:
    def run(a: str) -> bool:
        try:
            make(a)
        except EvaluationError:
            return False
        return True

    return run


declare("isIP(string) -> bool")(_parses(parse_address))


@declare("ip(string) -> ip")
def _(a: str) -> CelAddress:
    return parse_address(a)


@declare("ip.isCanonical(string) -> bool")
def _(a: str) -> bool:
    return str(parse_address(a)) == a


@declare("ip::family() -> int")
def _(a: CelAddress) -> int:
    return a.value.version


declare("ip::isUnspecified() -> bool")(lambda a: a.value.is_unspecified)
declare("ip::isLoopback() -> bool")(lambda a: a.value.is_loopback)
declare("ip::isLinkLocalUnicast() -> bool")(lambda a: a.value.is_link_local)


@declare("ip::isLinkLocalMulticast() -> bool")
def _(a: CelAddress) -> bool:
    if isinstance(a.value, IPv4Address):
        return a.value.packed[:3] == b"\xe0\x00\x00"
    return a.value.packed[0] == 0xFF and a.value.packed[1] & 0x0F == 2


@declare("ip::isGlobalUnicast() -> bool")
def _(a: CelAddress) -> bool:
    value = a.value
    limited = isinstance(value, IPv4Address) and int(value) == 2**32 - 1
    return not (
        limited
        or value.is_unspecified
        or value.is_loopback
        or value.is_multicast
        or value.is_link_local
    )


def parse_cidr(text: str) -> CelCIDR:
    """Parse an address and a prefix length."""
    head, slash, length = text.partition("/")
    value = parse_address(head).value if slash else None
    size = parse_natural(length)
    if (
        value is None
        or size is None
        or (length[0] == "0" and length != "0")
        or size > value.max_prefixlen
    ):
        raise EvaluationError(
            f'network address parse error during conversion from string: "{text}"'
        )
    return CelCIDR(value, size)


declare("isCIDR(string) -> bool")(_parses(parse_cidr))


@declare("cidr(string) -> cidr")
def _(a: str) -> CelCIDR:
    return parse_cidr(a)


def _contains_cidr(a: CelCIDR, b: CelCIDR) -> bool:
    same_family = a.address.version == b.address.version
    return same_family and a.length <= b.length and b.address in a.network


@declare("cidr::containsIP(ip) -> bool", "cidr::containsIP(string) -> bool")
def _(a: CelCIDR, b: CelAddress | str) -> bool:
    inner = parse_address(b) if isinstance(b, str) else b
    return inner.value.version == a.address.version and inner.value in a.network


@declare("cidr::containsCIDR(cidr) -> bool", "cidr::containsCIDR(string) -> bool")
def _(a: CelCIDR, b: CelCIDR | str) -> bool:
    return _contains_cidr(a, parse_cidr(b) if isinstance(b, str) else b)


@declare("cidr::ip() -> ip")
def _(a: CelCIDR) -> CelAddress:
    return CelAddress(a.address)


@declare("cidr::masked() -> cidr")
def _(a: CelCIDR) -> CelCIDR:
    return CelCIDR(a.network.network_address, a.length)


@declare("cidr::prefixLength() -> int")
def _(a: CelCIDR) -> int:
    return a.length


_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def parse_semver(text: str, tolerant: bool = False) -> Semver:
    """Parse a semantic version; ``tolerant`` also accepts ``v1.0``."""
    if tolerant:
        text = text.removeprefix("v")
        head = re.match(r"[0-9.]*", text)
        numbers = (head.group() if head else "").split(".")
        rest = text[len(head.group() if head else "") :]
        if len(numbers) <= 3 and all(numbers):
            numbers += ["0"] * (3 - len(numbers))
            text = ".".join(number.lstrip("0") or "0" for number in numbers) + rest
    match = _SEMVER.fullmatch(text)
    pre = (match[4] or "").split(".") if match and match[4] else []
    if match is None or any(part.isdigit() and part != "0" and part[0] == "0" for part in pre):
        raise EvaluationError(f"invalid semantic version {text!r}")
    major, minor, patch = (parse_natural(match[n]) for n in (1, 2, 3))
    too_long = any(part.isdigit() and parse_natural(part) is None for part in pre)
    if major is None or minor is None or patch is None or too_long:
        raise EvaluationError(f"invalid semantic version {text!r}")
    ranks = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre)
    return Semver((major, minor, patch), ranks)


@declare("semver(string) -> semver", "semver(string, bool) -> semver")
def _(a: str, tolerant: bool = False) -> Semver:
    return parse_semver(a, tolerant)


@declare("isSemver(string) -> bool", "isSemver(string, bool) -> bool")
def _(a: str, tolerant: bool = False) -> bool:
    try:
        parse_semver(a, tolerant)
    except EvaluationError:
        return False
    return True


declare("semver::isGreaterThan(semver) -> bool")(lambda a, b: a.rank > b.rank)
declare("semver::isLessThan(semver) -> bool")(lambda a, b: a.rank < b.rank)
declare("semver::compareTo(semver) -> int")(lambda a, b: (a.rank > b.rank) - (a.rank < b.rank))
declare("semver::major() -> int")(lambda a: a.numbers[0])
declare("semver::minor() -> int")(lambda a: a.numbers[1])
declare("semver::patch() -> int")(lambda a: a.numbers[2])


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


def _complete_prefix(text: str) -> str:
    """Complete a prefix that ends in a dash to a name that can be checked."""
    return text[:-1] + "a" if text.endswith("-") else text


def is_qualified(text: str) -> bool:
    head, slash, name = text.rpartition("/")
    fits = len(name) <= 63 and bool(re.fullmatch(_QUALIFIED_NAME, name))
    return fits and (not slash or NAMED_FORMATS["dns1123Subdomain"](head))


NAMED_FORMATS: dict[str, Callable[[str], bool]] = {
    "dns1123Label": lambda a: len(a) <= 63 and bool(re.fullmatch(_LABEL, a)),
    "dns1123Subdomain": lambda a: (
        len(a) <= 253 and bool(re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", a))
    ),
    "dns1035Label": lambda a: len(a) <= 63 and bool(re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", a)),
    "qualifiedName": is_qualified,
    "dns1123LabelPrefix": lambda a: NAMED_FORMATS["dns1123Label"](_complete_prefix(a)),
    "dns1123SubdomainPrefix": lambda a: NAMED_FORMATS["dns1123Subdomain"](_complete_prefix(a)),
    "dns1035LabelPrefix": lambda a: NAMED_FORMATS["dns1035Label"](_complete_prefix(a)),
    "labelValue": lambda a: not a or (len(a) <= 63 and bool(re.fullmatch(_QUALIFIED_NAME, a))),
    "uri": formats.is_uri,
    "uuid": formats.FORMATS["uuid"],
    "byte": formats.is_base64,
    "date": formats.is_date,
    "datetime": formats.is_date_time,
}


@declare("format.named(string) -> optional(format)")
def _(a: str) -> Optional:
    return Optional(CelFormat(a)) if a in NAMED_FORMATS else Optional()


def _declare_named_format(name: str) -> None:
    declare(f"format.{name}() -> format")(lambda: CelFormat(name))


for _name in NAMED_FORMATS:
    _declare_named_format(_name)


@declare("format::validate(string) -> optional(list(string))")
def _(a: CelFormat, text: str) -> Optional:
    if NAMED_FORMATS[a.name](text):
        return Optional()
    return Optional([f"{text!r} is not a valid {a.name}"])
