"""Writing settings down: those in effect for `config show`, all there are for the documentation, and an example file.

All three come from the tables that the parser uses, so none can drift; tests hold docs/settings.md and
load-watcher.example.toml to what is written here.
"""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING
from typing import Any

from watcher import model
from watcher.platform.settings.checks import value_of
from watcher.platform.settings.declaring import setting_of, settings_fields
from watcher.platform.settings.layers import LEGACY
from watcher.platform.settings.sections.provider import QuerySettings
from watcher.platform.settings.tables import KEYS, QUERIES, TABLES, Key, Settings
from watcher.platform.settings.values import HIDDEN, hide_credentials, write_text

COMMENT_COLUMN = 48


# --- config show -----------------------------------------------------------------------------------------------------


def show(settings: Settings) -> str:
    """The settings in effect as TOML, each with where it is from; nothing secret is in it."""
    blocks = [_shown_table(settings, name) for name in TABLES]
    blocks += [_shown_query(settings, metric) for metric in settings.provider.queries]
    blocks += [_shown_part(settings, name) for name in settings.parts]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _shown_table(settings: Settings, name: str) -> list[str]:
    lines = [f"[{name}]"]
    for key in KEYS.values():
        if key.table != (name,):
            continue
        value, origin = value_of(settings, key.name), settings.origins.get(key.name, "default")
        if key.name == "provider.name" and origin == "default":
            origin = f"default: {settings.provider.reason}"
        if value is None:
            lines.append(_with_comment(f"# {key.of.name}", "not set"))
        else:
            lines.append(_with_comment(f"{key.of.name} = {key.setting.kind.write(value)}", f"from {origin}"))
    return lines


def _shown_query(settings: Settings, metric: str) -> list[str]:
    query, table = settings.provider.queries[metric], (*QUERIES, metric)
    lines = [f"[{'.'.join(table)}]"]
    for each in settings_fields(QuerySettings):
        value, origin = getattr(query, each.name), settings.origins.get(Key(table, each).name, "default")
        if value is not None:
            lines.append(_with_comment(f"{each.name} = {setting_of(each).kind.write(value)}", f"from {origin}"))
    return lines


def _shown_part(settings: Settings, name: str) -> list[str]:
    origin = settings.origins.get(name, "")
    return [_with_comment(f"[{name}]", f"from {origin}"), *_part_lines(settings.parts[name], at=(name,))]


def _part_lines(table: Mapping[str, Any], *, at: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_toml_key(key)} = {_toml(value, secret=_sounds_secret(key))}"
    for key, value in inner.items():
        yield ""
        yield "[" + ".".join(map(_toml_key, (*at, key))) + "]"
        yield from _part_lines(value, at=(*at, key))


def _with_comment(text: str, comment: str) -> str:
    return f"{text:<{COMMENT_COLUMN}}  # {_one_line(comment)}"


def _one_line(text: str) -> str:
    return write_text(text)[1:-1] if not text.isprintable() else text


# What other packages' tables hold is known to them alone, so whatever sounds secret is hidden.
_SECRET_WORDS = re.compile(r"token|password|passwd|secret|credential|key|authorization|headers", re.IGNORECASE)


def _sounds_secret(key: str) -> bool:
    return _SECRET_WORDS.search(key) is not None and not key.endswith(("_file", "File"))


def _toml(value: Any, *, secret: bool) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each, secret=secret) for each in value) + "]"
    if isinstance(value, dict):
        inner = {_toml_key(key): _toml(each, secret=secret or _sounds_secret(key)) for key, each in value.items()}
        return "{ " + ", ".join(f"{key} = {each}" for key, each in inner.items()) + " }" if inner else "{}"
    if secret:
        return write_text(HIDDEN)
    if isinstance(value, str):
        return write_text(hide_credentials(value) if "//" in value else value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value).lower()


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else write_text(key)


# --- docs/settings.md ------------------------------------------------------------------------------------------------

_INTRODUCTION = """\
# Settings

<!-- Made by `python -m watcher.platform.settings docs > docs/settings.md` from watcher/platform/settings/tables.py; a
test holds it. -->

A setting is looked up in this order, and the first that has it wins:

1. flags of `load-watcher serve`; every setting has one: `--set section.key=value`
2. the environment: `LOAD_WATCHER_<SECTION>_<KEY>`, and [those of the Go load-watcher](#names-of-the-go-load-watcher)
3. the TOML file: `--config FILE`, else `LOAD_WATCHER_CONFIG`, else `load-watcher.toml` in the working directory
4. the default

`load-watcher config check FILE` says everything that is wrong with a file at once, and what to do about it.
`load-watcher config show` prints what is in effect, and for each setting where it is from, without anything secret.
[load-watcher.example.toml](../load-watcher.example.toml) has every setting with its default, ready to be copied.

An unknown key, section or `LOAD_WATCHER_…` variable is an error that names the nearest known one. Durations are
written `"60s"`, `"15m"`, `"1h30m"`, `"250ms"`, or as a number of seconds; sizes `"2GiB"`, `"500MB"`, or as a number of
bytes. In the environment lists are separated by commas, and an empty variable is one that is not set. Paths are
relative to the working directory. What is secret is better given as a file than in the environment, where child
processes and `kubectl describe` show it.

Kubernetes puts the addresses of services into the environment of every pod of their namespace
(`LOAD_WATCHER_SERVICE_HOST`, `LOAD_WATCHER_PORT=tcp://…`, for a service called `load-watcher`). Those are passed over.
"""

_LEGACY_HEADING = """\
## Names of the Go load-watcher

These keep working. Where `LOAD_WATCHER_<SECTION>_<KEY>` of the same setting is there too, that one wins. A name that
begins with `METRICS_PROVIDER_` and is none of them is passed over with a notice that names the nearest.

| variable | setting | meaning |
|---|---|---|
"""

_PARTS = """\
## Other tables

`[scheduler.<profile>]`, `[agent]` and `[qrm]` belong to the scorers, the node agent and the QoS Resource Manager. One
file may have all of them: every command checks them, and each takes its own.
"""


def documentation() -> str:
    """docs/settings.md."""
    sections = [documented(f"## `[{name}]`", table.__doc__, _own_keys(name)) for name, table in TABLES.items()]
    metrics = ", ".join(f"`{metric.key}`" for metric in model.METRICS)
    queries = (
        documented("## `[provider.queries.<metric>]`", QuerySettings.__doc__, _query_keys())
        + f"\n`<metric>` is one of {metrics}. In the environment it stands in capitals, like the rest.\n"
    )
    legacy = _LEGACY_HEADING + "\n".join(f"| `{each.variable}` | `{each.key}` | {each.meaning} |" for each in LEGACY)
    return "\n".join([_INTRODUCTION, *sections, queries, f"{legacy}\n", _PARTS])


def _own_keys(name: str) -> list[Key]:
    return [key for key in KEYS.values() if key.table == (name,)]


def _query_keys() -> list[Key]:
    return [Key((*QUERIES, "<metric>"), each) for each in settings_fields(QuerySettings)]


def documented(heading: str, doc: str | None, keys: Iterable[Key]) -> str:
    """A table of settings as Markdown, below its heading and what is to be said of all of them."""
    lines = [heading, "", (doc or "").replace("`reason` says why it is this provider.", "").strip(), ""]
    lines += ["| key | default | meaning | takes |", "|---|---|---|---|"]
    for key in keys:
        about, accepts = _cell(key.setting.doc), _cell(key.setting.kind.brief or key.setting.kind.accepts)
        lines.append(f"| `{key.of.name}`{_flag(key)} | {_default(key)} | {about} | {accepts} |")
    return "\n".join(lines) + "\n"


def _flag(key: Key) -> str:
    return f"<br>`{key.setting.flag}`" if key.setting.flag else ""


def _default(key: Key) -> str:
    if key.default is MISSING:
        return "must be set"
    if key.default is None or key.name == "provider.name":
        return "not set"
    return f"`{key.setting.kind.write(key.default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# --- load-watcher.example.toml ---------------------------------------------------------------------------------------

_EXAMPLE_HEADING = """\
# Every setting of load-watcher with its default. Those without one are commented out, with an example.
# Copy this to load-watcher.toml and keep what you change; docs/settings.md says more.
# Made by `python -m watcher.platform.settings example > load-watcher.example.toml`; a test holds it.
"""


def example() -> str:
    """load-watcher.example.toml: valid as it is, and equal to the defaults."""
    blocks = [_EXAMPLE_HEADING.rstrip()]
    for name in TABLES:
        blocks.append("\n".join([f"[{name}]", *(line for key in _own_keys(name) for line in _example_lines(key))]))
        if name == QUERIES[0]:
            cpu = [Key((*QUERIES, "CPU"), each) for each in settings_fields(QuerySettings)]
            lines = [line for key in cpu for line in _example_lines(key, commented=True)]
            blocks.append("\n".join(["# [provider.queries.CPU]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _example_lines(key: Key, *, commented: bool = False) -> list[str]:
    if commented or key.default is None or key.name == "provider.name":
        line = f"# {key.of.name} = {key.example}"
    else:
        line = f"{key.of.name} = {key.setting.kind.write(key.default)}"
    return [*textwrap.wrap(key.setting.doc, 116, initial_indent="# ", subsequent_indent="# "), line]
