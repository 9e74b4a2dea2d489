"""Log lines: levels, both formats, and what is never logged."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.runtime.process import logs
from zonewise.runtime.process.log_lines import HIDDEN, TRACEBACK_LIMIT, VALUE_LIMIT, clean


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logs.configure()


def test_text_is_one_line_with_fields_in_order() -> None:
    """A text line has time, level, logger, sentence and fields, and never a second line."""
    out = io.StringIO()
    logs.configure(verbosity=1, stream=out)
    logs.logger("election").info("leading", lease="zonewise-x", note="two\nlines", n=3)
    line = out.getvalue()
    assert line.count("\n") == 1
    assert line.rstrip().endswith(
        'INFO    election: leading lease=zonewise-x note="two\\nlines" n=3'
    )


def test_a_sentence_with_line_breaks_stays_one_line() -> None:
    """Text from outside cannot forge a second log line."""
    out = io.StringIO()
    logs.configure(stream=out)
    logs.logger("x").error("bad\n2026-01-01T00:00:00Z ERROR forged")
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("format", ["text", "json"])
def test_half_a_character_is_logged_by_its_number(format: logs.Format) -> None:
    """Text from outside that is not valid UTF-8 can be logged."""
    out = io.StringIO()
    logs.configure(format=format, stream=out)
    logs.logger("x").error("key \ud800", field="\udfff", more=["\ud800"])
    assert out.getvalue().count("\n") == 1
    assert r"\ud800" in out.getvalue() and r"\udfff" in out.getvalue()


def test_json_is_one_object_per_line() -> None:
    """A JSON line has the same fields under fixed names."""
    out = io.StringIO()
    logs.configure(verbosity=2, format="json", stream=out)
    logs.logger("queue").debug("retry", key=("ns", "name"), delay=1.5)
    line = json.loads(out.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "debug",
        "logger": "queue",
        "event": "retry",
        "key": ["ns", "name"],
        "delay": 1.5,
    }


@pytest.mark.parametrize(("verbosity", "expected"), [(0, "we"), (1, "iwe"), (2, "diwe")])
def test_verbosity_decides_what_is_written(verbosity: int, expected: str) -> None:
    """Each -v adds one level."""
    out = io.StringIO()
    logs.configure(verbosity=verbosity, format="json", stream=out)
    log = logs.logger("x")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert "".join(json.loads(line)["event"] for line in out.getvalue().splitlines()) == expected


def test_a_logger_made_before_configure_obeys_it() -> None:
    """Loggers of modules follow a later configuration, and the next one."""
    log = logs.logger("early")
    first, second = io.StringIO(), io.StringIO()
    logs.configure(stream=first)
    log.error("one")
    logs.configure(stream=second)
    log.error("two")
    assert "one" in first.getvalue() and "two" not in first.getvalue()
    assert "two" in second.getvalue()


def test_exceptions_come_with_a_traceback() -> None:
    """A logged exception shows where it was raised, in both formats."""
    for kind in ("text", "json"):
        out = io.StringIO()
        logs.configure(format="json" if kind == "json" else "text", stream=out)
        try:
            raise KeyError("missing")
        except KeyError:
            logs.logger("x").exception("crashed")
        assert "KeyError" in out.getvalue() and "test_logs.py" in out.getvalue()


def test_libraries_log_through_the_same_renderer() -> None:
    """What asyncio or aiohttp log appears once, in our format, from WARNING on."""
    out = io.StringIO()
    logs.configure(format="json", stream=out)
    logs.configure(format="json", stream=out)
    logging.getLogger("aiohttp.client").warning("odd %s", "thing")
    logging.getLogger("aiohttp.client").info("chatter")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["logger"], line["event"]) for line in lines] == [("aiohttp.client", "odd thing")]


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "id_token",
        "Authorization",
        "password",
        "client-key-data",
        "tls.key",
        "clientSecret",
    ],
)
def test_credentials_are_hidden_by_name(name: str) -> None:
    """A field whose name suggests a credential shows no value, also inside of others."""
    assert clean({"a": [{name: "hunter2hunter2"}]}) == {"a": [{name: HIDDEN}]}


_KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    "secret", [_KEY, _KEY[:50], "Bearer abcdef0123456789", "eyJhbGciOiJSUzI1NiJ9.eyJpc3Mi.c2lnbg"]
)
@given(before=st.text(max_size=20), after=st.text(alphabet=" \n,;", max_size=5))
def test_credentials_are_cut_out_of_other_values(secret: str, before: str, after: str) -> None:
    """Tokens and private keys inside any text are removed, the rest stays."""
    text = clean(f"{before} {secret}{after}", name="error")
    assert secret not in text and HIDDEN in text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_becomes_plain_and_bounded(value: object) -> None:
    """Any value can be encoded as JSON afterwards, and is read back equal."""
    plain = clean(value)
    assert json.loads(json.dumps(plain)) == plain


def test_long_values_are_cut() -> None:
    """The length of a value is bounded; tracebacks have a larger limit."""
    assert len(clean("x" * 10**6, name="body")) == VALUE_LIMIT
    assert len(clean("x" * 10**6, name="exception")) == TRACEBACK_LIMIT


@pytest.mark.system
def test_logs_do_not_import_structlog_until_a_line_is_written() -> None:
    """A command that logs nothing does not import the log library."""
    code = (
        "import sys; from zonewise.runtime.process import logs; log = logs.logger('x');"
        "assert 'structlog' not in sys.modules; log.warning('now');"
        "assert 'structlog' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "WARNING x: now" in done.stderr
