"""Formats the settings in effect for `config show`."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Any

from watcher.core.config.settings import Settings
from watcher.core.config.values import HIDDEN, hide_credentials, write_text
from watcher.service.settings.checks import value_of
from watcher.service.settings.tables import QUERIES, TABLES, keys_of, query_keys
from watcher.sources.settings import ProviderSettings

COMMENT_COLUMN = 48


def show(settings: Settings) -> str:
    """Format the settings in effect as TOML, each with its origin as a comment; secrets are hidden."""
    blocks = [_shown_table(settings, name) for name in TABLES]
    blocks += [_shown_query(settings, metric) for metric in settings[ProviderSettings].queries]
    blocks += [_shown_part(settings, name) for name in settings.parts]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _shown_table(settings: Settings, name: str) -> list[str]:
    lines = [f"[{name}]"]
    for key in keys_of(name):
        value, origin = value_of(settings, key.name), settings.origins.get(key.name, "default")
        if key.name == "provider.name" and origin == "default":
            origin = f"default: {settings[ProviderSettings].reason}"
        if value is None:
            lines.append(_with_comment(f"# {key.setting.name}", "not set"))
        else:
            lines.append(_with_comment(f"{key.setting.name} = {key.setting.kind.write(value)}", f"from {origin}"))
    return lines


def _shown_query(settings: Settings, metric: str) -> list[str]:
    query = settings[ProviderSettings].queries[metric]
    lines = [f"[{'.'.join((*QUERIES, metric))}]"]
    for key in query_keys(metric):
        value, origin = getattr(query, key.setting.name), settings.origins.get(key.name, "default")
        if value is not None:
            lines.append(_with_comment(f"{key.setting.name} = {key.setting.kind.write(value)}", f"from {origin}"))
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


# The kinds of values in other packages' tables are unknown here, so every key that may be secret is hidden.
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
