"""Single values of settings: valid and invalid inputs of each kind, and that each written value can be read again."""

import contextlib
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.config.addresses import ADDRESS, DATABASE, HEADERS
from watcher.core.config.quantities import (
    duration,
    read_duration,
    size,
    whole_seconds,
    write_duration,
    write_size,
)
from watcher.core.config.values import (
    BOOLEAN,
    FRACTION,
    SECRET,
    TEXT,
    InvalidValue,
    Secret,
    choice,
    hide_credentials,
    integer,
    read_argument,
    write_text,
)
from watcher.service.settings.tables import KEYS

DURATIONS = {
    "60s": 60,
    "15m": 900,
    "1h30m": 5400,
    "250ms": 0.25,
    "1.5s": 1.5,
    "2d": 172800,
    "90": 90,
    " 5m ": 300,
    "1h0m1s": 3601,
    60: 60,
    0.5: 0.5,
    0: 0,
}


@pytest.mark.parametrize(("given", "seconds"), DURATIONS.items(), ids=repr)
def test_durations_are_read_in_seconds(given, seconds):
    """Durations are texts with units, largest first, or numbers of seconds."""
    assert read_duration(given) == seconds


@pytest.mark.parametrize(
    "given",
    [
        "",
        "fast",
        "-5s",
        "5 m",
        "s",
        "5s1m",
        "1e3s",
        "٣s",
        "5mm",
        "nan",
        "inf",
        -1,
        float("nan"),
        float("inf"),
        10**400,
        True,
        None,
        [],
        {},
    ],
    ids=lambda given: repr(given)[:20],
)
def test_an_invalid_duration_is_an_error(given):
    """Negative, infinite, unparsable and untyped durations."""
    with pytest.raises(InvalidValue):
        read_duration(given)


@given(st.integers(0, 10**9).map(lambda millis: millis / 1000) | st.floats(1e-9, 1e9))
def test_written_durations_are_read_again(seconds):
    """A written duration is exact to a millisecond or 15 digits."""
    assert read_duration(write_duration(seconds)) == pytest.approx(seconds, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("seconds", "text"), [(900, "15m"), (5400, "1h30m"), (86400, "24h"), (0.25, "250ms"), (1.5, "1.5s"), (0, "0s")]
)
def test_durations_are_written_in_one_form(seconds, text):
    """The form of the windows in the API."""
    assert write_duration(seconds) == text


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [
        ("2GiB", 2 * 2**30),
        ("500MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("64kb", 64_000),
        ("12", 12),
        ("7B", 7),
        (1024, 1024),
    ],
)
def test_sizes_are_read_in_bytes(given, bytes_):
    """Decimal and binary units differ, in any case."""
    assert size(lowest=0).read(given) == bytes_


@pytest.mark.parametrize("given", ["", "GiB", "2 gigs", "-1GiB", "1e3", 1.5, True, -1, 2**70, None])
def test_an_invalid_size_is_an_error(given):
    """A size is a positive text with a known unit, or a whole number of bytes."""
    with pytest.raises(InvalidValue):
        size(lowest=0).read(given)


@given(st.integers(0, 2**60))
def test_written_sizes_are_read_again(bytes_):
    """Without loss."""
    assert size(lowest=0).read(write_size(bytes_)) == bytes_


@given(st.text())
def test_written_text_is_a_toml_string(text):
    """Any text, also with control characters and lone surrogates, is written as TOML that is read as the same text."""
    assert tomllib.loads(f"x = {write_text(text)}")["x"] == text.encode("utf-8", "backslashreplace").decode()


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (BOOLEAN, "TRUE", True),
        (BOOLEAN, "off", False),
        (BOOLEAN, "1", True),
        (integer(lowest=0, highest=65535), " 2020 ", 2020),
        (FRACTION, "0.25", 0.25),
        (FRACTION, "1", 1.0),
        (SECRET, "s3cret\n", Secret("s3cret")),
        (TEXT, " a ", "a"),
        (choice(["Enforce"], aliases={"act": "Enforce"}), "ACT", "Enforce"),
        (HEADERS, "X-A=b=c, X-B=d", {"X-A": Secret("b=c"), "X-B": Secret("d")}),
        (HEADERS, '{"X-A": "b,c"}', {"X-A": Secret("b,c")}),
        (ADDRESS, "https://[::1]:9090/prom/", "https://[::1]:9090/prom"),
        (DATABASE, "sqlite:////var/lib/x.db", "sqlite:////var/lib/x.db"),
        (DATABASE, "postgresql://u:p@host:5432/db?sslmode=require", "postgresql://u:p@host:5432/db?sslmode=require"),
    ],
)
def test_text_of_the_environment_is_read(kind, given, value):
    """The environment has only texts; each kind can be written as one."""
    assert kind.read_text(given) == value


REFUSED = [
    (BOOLEAN, "maybe"),
    (BOOLEAN, ""),
    (integer(lowest=0, highest=65535), "65536"),
    (integer(lowest=0, highest=65535), "-1"),
    (integer(lowest=0, highest=65535), "9" * 5000),
    (whole_seconds(lowest=1, highest=60), "1.5s"),
    (whole_seconds(lowest=1, highest=60), "61s"),
    (duration(lowest=1, highest=60), "500ms"),
    (FRACTION, "nan"),
    (FRACTION, "0"),
    (FRACTION, "1.1"),
    (SECRET, "a\nb"),
    (SECRET, ""),
    (HEADERS, "X-A"),
    (HEADERS, "X A=b"),
    (HEADERS, '{"X-A": 1}'),
    (HEADERS, "{broken"),
    (HEADERS, "[" * 100_000),
    (ADDRESS, "prometheus:9090"),
    (ADDRESS, "ftp://prometheus"),
    (ADDRESS, "http://"),
    (ADDRESS, "http://host:99999"),
    (ADDRESS, "http://host:port"),
    (ADDRESS, "http://[::1"),
    (ADDRESS, "http://a b"),
    (ADDRESS, "http://host\n.evil"),
    (ADDRESS, "http://host/?token=x"),
    (DATABASE, "sqlite://"),
    (DATABASE, "sqlite:///:memory:"),
    (DATABASE, "sqlite:///"),
    (DATABASE, "postgresql://u:p@host"),
    (DATABASE, "postgresql+psycopg2://u:p@host/db"),
    (DATABASE, "postgresql://host/d b"),
    (DATABASE, "load-watcher.db"),
]


@pytest.mark.parametrize(
    ("kind", "given"), REFUSED, ids=[f"{n}: {given!r:.20}" for n, (_, given) in enumerate(REFUSED)]
)
def test_invalid_text_is_an_error(kind, given):
    """Unfit, for any failure while it is read."""
    with pytest.raises(InvalidValue):
        kind.read_text(given)


@given(st.sampled_from(sorted(KEYS)), st.text())
def test_any_text_is_read_or_refused(key, text):
    with contextlib.suppress(InvalidValue):
        KEYS[key].setting.kind.read_text(text)


@given(
    st.sampled_from(["http://", "postgresql://", ""]),
    st.text(alphabet="pw@/?#:&%[] ", max_size=8),
    st.sampled_from(["host", "host:9090/path"]),
)
def test_credentials_are_hidden_for_any_password(scheme, password, host):
    """Also for a password with @, / or ?."""
    assert hide_credentials(f"{scheme}user:{password}@{host}") == f"{scheme}<hidden>@{host}"


def test_a_secret_is_shown_by_reveal_only():
    """repr, str and format hide it."""
    secret = Secret("s3cret")
    assert f"{secret} {secret!r} {secret!s}" == "<hidden> <hidden> <hidden>"
    assert secret.reveal() == "s3cret"
    assert secret == Secret("s3cret") != Secret("other")


@pytest.mark.parametrize("key", sorted(KEYS))
def test_the_example_of_a_setting_is_also_its_text(key):
    """Lists and tables are written in flags and variables as in the file."""
    kind, value = KEYS[key].setting.kind, tomllib.loads(f"value = {KEYS[key].setting.example}")["value"]
    assert kind.read(value) == read_argument(kind, value if isinstance(value, str) else KEYS[key].setting.example)


@pytest.mark.parametrize("text", ['["5m", "10m"]', '["5m","10m"]', "5m,10m", " 5m , 10m "])
def test_a_list_is_read_as_toml_or_separated_by_commas(text):
    windows = read_argument(KEYS["refresh.windows"].setting.kind, text)
    assert ["5m", "10m"] == [each.label for each in windows]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("store.url", '"sqlite:///x.db"', "sqlite:///x.db"),
        ("provider.address", "'http://prometheus:9090'", "http://prometheus:9090"),
        ("refresh.interval", '"30s"', 30.0),
        ("server.port", '"80"', None),
    ],
)
def test_a_quoted_string_is_read_as_toml(key, text, value):
    """As in remedies and in the settings file; a number in quotes is not a number."""
    kind = KEYS[key].setting.kind
    if value is None:
        with pytest.raises(InvalidValue):
            read_argument(kind, text)
    else:
        assert value == read_argument(kind, text)


def test_quotes_around_a_password_are_part_of_it():
    assert Secret('"x"') == read_argument(KEYS["provider.password"].setting.kind, '"x"')


def test_an_expression_that_looks_like_a_table_is_text():
    kind = KEYS["provider.queries.CPU.expression"].setting.kind
    assert '{__name__="x"}' == read_argument(kind, '{__name__="x"}')


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ('["5m"', "it starts with [ but is not a TOML list"),
        ('["x"]', 'given "x"'),
        ("[]", "given an empty list"),
    ],
)
def test_a_wrong_list_is_described_as_a_list(text, detail):
    with pytest.raises(InvalidValue) as refused:
        read_argument(KEYS["refresh.windows"].setting.kind, text)
    assert detail in str(refused.value)
