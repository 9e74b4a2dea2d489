"""Errors of texts that are not times, with the messages of Go's parser.

A Time is RFC 3339 with any fraction; a MicroTime has exactly six fractional digits. Go's parser
follows a layout part by part and names the first part that does not match; ranges are checked when
a part is read.
"""

from __future__ import annotations

import calendar
import re

TIME = "2006-01-02T15:04:05Z07:00"
MICRO_TIME = "2006-01-02T15:04:05.000000Z07:00"

_LAYOUT = (
    ("2006", r"\d{4}"),
    ("-", "-"),
    ("01", r"\d\d"),
    ("-", "-"),
    ("02", r"\d\d"),
    ("T", "T"),
    ("15", r"\d\d"),
    (":", ":"),
    ("04", r"\d\d"),
    (":", ":"),
    ("05", r"\d\d"),
)
_ZONE = re.compile(r"Z|[+-](\d\d):(\d\d)")
_RANGES = {
    "01": ("month", 1, 12),
    "15": ("hour", 0, 23),
    "04": ("minute", 0, 59),
    "05": ("second", 0, 59),
}


def time_error_text(text: str, *, micro: bool = False) -> str | None:
    """Go's error for a text that is not a time; None if it is one."""
    layout = MICRO_TIME if micro else TIME
    numbers: dict[str, int] = {}
    position = 0
    for part, pattern in _LAYOUT:
        match = re.compile(pattern, re.ASCII).match(text, position)
        if match is None:
            return _cannot_parse(text, layout, text[position:], part)
        position = match.end()
        if len(part) > 1:
            numbers[part] = int(match[0])
            name, low, high = _RANGES.get(part, ("", 0, 9999))
            if not low <= numbers[part] <= high:
                return f'parsing time "{text}": {name} out of range'
    fraction = re.compile(r"\.\d{6}" if micro else r"([.,]\d+)?", re.ASCII).match(text, position)
    if fraction is None:
        return _cannot_parse(text, layout, text[position:], ".000000")
    position = fraction.end()
    zone = _ZONE.match(text, position)
    if zone is None:
        return _cannot_parse(text, layout, text[position:], "Z07:00")
    if zone[1] and (int(zone[1]) > 24 or int(zone[2]) > 60):
        return f'parsing time "{text}": time zone offset hour out of range'
    if zone.end() < len(text):
        return f'parsing time "{text}": extra text: "{text[zone.end() :]}"'
    last = calendar.monthrange(max(numbers["2006"], 1), numbers["01"])[1]
    if not 1 <= numbers["02"] <= last:
        return f'parsing time "{text}": day out of range'
    return None


def _cannot_parse(text: str, layout: str, remainder: str, part: str) -> str:
    return f'parsing time "{text}" as "{layout}": cannot parse "{remainder}" as "{part}"'
