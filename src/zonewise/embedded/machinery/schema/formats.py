"""What the named formats of a structural schema accept.

Unknown formats accept everything, and a dash in a name does not count (``date-time`` is
``datetime``): both as on a real server, whose checks are looser than the names promise in places.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date
from functools import partial
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import urlsplit

from zonewise.api.values.numbers import parse_natural

Check = Callable[[str], bool]

_HOST = re.compile(
    r"([a-zA-Z0-9](?:-?[a-zA-Z0-9]{0,62})?"
    r"|(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]{2,63})"
)
_SHORT_NAME = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME = re.compile(
    r"([0-9]{2})([0-9]{2})-([0-9]{2})-([0-9]{2})[Tt]"
    r"([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_GO_DURATION = re.compile(r"[-+]?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)")
_SCALA_UNITS = (
    r"n(?:s|anos?|anoseconds?)|[uµ]s|micro(?:s|seconds?)?|m(?:s|illis?|illiseconds?)"
    r"|s(?:ecs?|econds?)?|m(?:ins?|inutes?)?|h(?:rs?|ours?)?|d(?:ays?)?|w(?:eeks?)?"
)
_SCALA_DURATION = re.compile(rf"(?:\d+\s*(?:{_SCALA_UNITS})\s*)+")
_ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\\\"]+@[^\s@,;:<>()\\\"]+")
_NAMED_ADDRESS = re.compile(r"[^<>,@]*<([^<>]*)>\s*")
_BAD_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")
_URI = re.compile(r"(?:[a-zA-Z][a-zA-Z0-9+.-]*:|/)[^\x00-\x20\x7f]*")


def accepts(format_name: str, text: str) -> bool:
    """Whether a text is of a format; unknown formats accept everything."""
    check = FORMATS.get(format_name.replace("-", ""))
    return check is None or check(text)


def is_ipv4(text: str) -> bool:
    """Dotted decimal, leading zeros allowed, or IPv6 with such an end."""
    if ":" in text:
        return "." in text and is_ipv6(text)
    numbers = [parse_natural(part) for part in text.split(".")]
    return len(numbers) == 4 and all(number is not None and number < 256 for number in numbers)


def is_ipv6(text: str) -> bool:
    """An IPv6 address without a zone."""
    if ":" not in text or "%" in text:
        return False
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def is_cidr(text: str) -> bool:
    """An address, a slash and a length that fits it."""
    address, slash, length = text.partition("/")
    if not slash or not (length.isascii() and length.isdigit()) or len(length) > 3:
        return False
    if ":" in address:
        return is_ipv6(address) and int(length) <= 128
    return is_ipv4(address) and int(length) <= 32


def is_hostname(text: str) -> bool:
    """Labels of at most 63 characters, 255 in all."""
    if not text.isascii():
        try:
            text = text.encode("idna").decode()
        except UnicodeError:
            return False
    return (
        len(text) <= 255
        and _HOST.fullmatch(text) is not None
        and all(len(label) <= 63 for label in text.split("."))
    )


def is_date_time(text: str) -> bool:
    """RFC 3339."""
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return False
    hour, minute, second = (int(match[n]) for n in (5, 6, 7))
    return hour < 24 and minute < 60 and second < 60 and is_date(text[:10])


def is_date(text: str) -> bool:
    """A day that exists, ``2006-01-02``."""
    if _DATE.fullmatch(text) is None:
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_duration(text: str) -> bool:
    """Go's ``1h30m``, or ``2 days`` in words."""
    return bool(_GO_DURATION.fullmatch(text) or _SCALA_DURATION.fullmatch(text))


def is_base64(text: str) -> bool:
    """Padded standard base64, at least one group."""
    try:
        return bool(text) and bool(base64.b64decode(text, validate=True)) and len(text) % 4 == 0
    except (binascii.Error, ValueError):
        return False


def is_email(text: str) -> bool:
    """An address, alone or in angle brackets behind a name."""
    named_address = _NAMED_ADDRESS.fullmatch(text)
    return _ADDRESS.fullmatch(named_address[1] if named_address else text.strip()) is not None


def is_uri(text: str) -> bool:
    """A scheme or an absolute path."""
    if _URI.fullmatch(text) is None or _BAD_PERCENT.search(text):
        return False
    try:
        urlsplit(text)
    except ValueError:
        return False
    return True


def is_mac(text: str) -> bool:
    """Six, eight or twenty bytes separated by colons, dashes or dots."""
    for separator, width in ((":", 2), ("-", 2), (".", 4)):
        parts = text.split(separator)
        if len(parts) > 1:
            size = len(parts) * width // 2
            digits = all(re.fullmatch(rf"[0-9a-fA-F]{{{width}}}", part) for part in parts)
            return digits and size in (6, 8, 20)
    return False


def is_isbn(length: int, text: str) -> bool:
    """Ten or thirteen digits with a valid checksum."""
    digits = text.replace("-", "").replace(" ", "")
    if length == 10:
        if not re.fullmatch(r"[0-9]{9}[0-9X]", digits):
            return False
        values = [10 if digit == "X" else int(digit) for digit in digits]
        return sum((n + 1) * value for n, value in enumerate(values)) % 11 == 0
    if not re.fullmatch(r"[0-9]{13}", digits):
        return False
    return sum(int(digit) * (3 if n % 2 else 1) for n, digit in enumerate(digits)) % 10 == 0


def is_credit_card(text: str) -> bool:
    """The length and prefix of a known issuer, and a valid checksum."""
    digits = re.sub(r"[^0-9]+", "", text)
    issuer_match = re.fullmatch(
        r"4\d{12}(\d{3})?|5[1-5]\d{14}|6(011|5\d\d)\d{12}|3[47]\d{13}"
        r"|3(0[0-5]|[68]\d)\d{11}|(2131|1800|35\d{3})\d{11}",
        digits,
    )
    doubled = [sum(divmod(int(d) * (1 + n % 2), 10)) for n, d in enumerate(reversed(digits))]
    return issuer_match is not None and sum(doubled) % 10 == 0


def is_long_name(text: str) -> bool:
    """A DNS subdomain without a limit on its labels."""
    pattern = rf"{_SHORT_NAME}(?:\.{_SHORT_NAME})*"
    return len(text) <= 253 and re.fullmatch(pattern, text) is not None


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.IGNORECASE) is not None


_HEX4 = "[0-9a-f]{4}"
_UUID = "[0-9a-f]{{8}}-?[0-9a-f]{{4}}-?{third}-?{fourth}-?[0-9a-f]{{12}}"
_VARIANT = "[89ab][0-9a-f]{3}"
_CHANNEL = r"\s*([01]?[0-9]?[0-9]|2[0-4][0-9]|25[0-5])\s*"

FORMATS: dict[str, Check] = {
    "bsonobjectid": partial(_matches, "[0-9a-f]{24}"),
    "uri": is_uri,
    "email": is_email,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "cidr": is_cidr,
    "mac": is_mac,
    "uuid": partial(_matches, _UUID.format(third=_HEX4, fourth=_HEX4)),
    "uuid3": partial(_matches, _UUID.format(third="3[0-9a-f]{3}", fourth=_HEX4)),
    "uuid4": partial(_matches, _UUID.format(third="4[0-9a-f]{3}", fourth=_VARIANT)),
    "uuid5": partial(_matches, _UUID.format(third="5[0-9a-f]{3}", fourth=_VARIANT)),
    "isbn": lambda text: is_isbn(10, text) or is_isbn(13, text),
    "isbn10": partial(is_isbn, 10),
    "isbn13": partial(is_isbn, 13),
    "creditcard": is_credit_card,
    "ssn": partial(_matches, r"[0-9]{3}[- ][0-9]{2}[- ][0-9]{4}"),
    "hexcolor": partial(_matches, "#?([0-9a-f]{3}|[0-9a-f]{6})"),
    "rgbcolor": partial(_matches, rf"rgb\({_CHANNEL},{_CHANNEL},{_CHANNEL}\)"),
    "byte": is_base64,
    "date": is_date,
    "duration": is_duration,
    "datetime": is_date_time,
    "k8sshortname": lambda text: len(text) <= 63 and bool(re.fullmatch(_SHORT_NAME, text)),
    "k8slongname": is_long_name,
}
