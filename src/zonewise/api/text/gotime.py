"""Why a text is not a time, in the words of Go's parser.

A Time is RFC 3339 with any fraction; a MicroTime has exactly six fractional digits. Go's parser
follows a layout piece by piece and names the first piece it could not find; ranges are checked
when a piece is read.
"""

from __future__ import annotations

import calendar
import re

TIME = "2006-01-02T15:04:05Z07:00"
MICRO_TIME = "2006-01-02T15:04:05.000000Z07:00"

_PIECES = (
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


def time_complaint(text: str, *, micro: bool = False) -> str | None:
    """Go's error for a text that is not a time; None if it is one."""
    layout = MICRO_TIME if micro else TIME
    found: dict[str, int] = {}
    at = 0
    for piece, form in _PIECES:
        match = re.compile(form, re.ASCII).match(text, at)
        if match is None:
            return _unparsed(text, layout, text[at:], piece)
        at = match.end()
        if len(piece) > 1:
            found[piece] = int(match[0])
            name, low, high = _RANGES.get(piece, ("", 0, 9999))
            if not low <= found[piece] <= high:
                return f'parsing time "{text}": {name} out of range'
    fraction = re.compile(r"\.\d{6}" if micro else r"([.,]\d+)?", re.ASCII).match(text, at)
    if fraction is None:
        return _unparsed(text, layout, text[at:], ".000000")
    at = fraction.end()
    zone = _ZONE.match(text, at)
    if zone is None:
        return _unparsed(text, layout, text[at:], "Z07:00")
    if zone[1] and (int(zone[1]) > 24 or int(zone[2]) > 60):
        return f'parsing time "{text}": time zone offset hour out of range'
    if zone.end() < len(text):
        return f'parsing time "{text}": extra text: "{text[zone.end() :]}"'
    last = calendar.monthrange(max(found["2006"], 1), found["01"])[1]
    if not 1 <= found["02"] <= last:
        return f'parsing time "{text}": day out of range'
    return None


def _unparsed(text: str, layout: str, rest: str, piece: str) -> str:
    return f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "{piece}"'
