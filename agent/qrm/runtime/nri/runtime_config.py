"""The settings of containerd and CRI-O that concern NRI, from their files, for `load-watcher doctor`.

Sources: containerd's internal/nri/config.go and cmd/containerd/server/config (1.7.28, 2.0.0 to 2.4.2); CRI-O's
internal/config/nri/nri.go (1.34.0 and later); containerd/nri's default validator (v0.12.5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watcher.decoding.text import decode_toml, read_text

CONTAINERD, CRIO = "containerd", "CRI-O"
DEFAULT_FILES = {CONTAINERD: Path("/etc/containerd/config.toml"), CRIO: Path("/etc/crio/crio.conf")}
TABLES = {CONTAINERD: 'plugins."io.containerd.nri.v1.nri"', CRIO: "crio.nri"}
VALIDATING = {CONTAINERD: (2, 2), CRIO: (1, 34, 1)}
"""No earlier version has the default validator."""
UPGRADE = {
    CONTAINERD: "use containerd 2.2 or newer",
    CRIO: "use a CRI-O in which `crio config` prints nri_enable_default_validator, newer than 1.34.0",
}
TOLERATION = "tolerate-missing-nri-plugins.noderesource.dev"
"""The annotation of deploy/components/qrm-nri and of the chart."""
DEADLOCK_FREE = (0, 12, 1)
"""The first NRI whose lock is not held while a runtime updates containers for a plug-in (containerd/nri pull request
301, tag v0.12.1 of 2026-07-18). By their go.mod: containerd 2.4.0 has NRI 0.12.3, 2.3.7 has 0.12.0, 2.2.9 has 0.11.0,
2.1.9 and 1.7.35 have 0.8.0; CRI-O 1.36.1 has 0.11.0."""
MAX_FILES = 100


class UnreadableConfig(Exception):
    """The settings of the runtime are unknown: why, with a fix."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class NriConfig:
    """What the files of `runtime` say. `on` is None if they do not say whether NRI is on; `connections`: whether
    plug-ins may connect to the socket; `socket` is "" for the default; `validator`: whether the default validator is
    on."""

    runtime: str
    file: Path
    on: bool | None = None
    connections: bool = True
    socket: str = ""
    validator: bool = False
    required: tuple[str, ...] = ()
    toleration: str = ""

    @property
    def place(self) -> str:
        """The table of the settings and the file, for a fix."""
        return f"[{TABLES[self.runtime]}] of {self.file}"

    def lines(self, plugin: str) -> str:
        """The setting that requires a plug-in, in the syntax of the file."""
        enable, prefix = ("nri_enable_default_validator", "nri_validator_") if self.runtime == CRIO else ("enable", "")
        names = ", ".join(f'"{name}"' for name in dict.fromkeys((*self.required, plugin)))
        required = f"{prefix}required_plugins = [{names}]"
        tolerated = f'{prefix}tolerate_missing_plugins_annotation = "{TOLERATION}"'
        return f"default_validator = {{ {enable} = true, {required}, {tolerated} }}"


def may_deadlock(nri: str) -> bool:
    """Whether a runtime with this version of NRI can deadlock when a plug-in updates containers; true if it is
    unknown, because early versions do not report it."""
    return version_of(nri) < DEADLOCK_FREE


def version_of(text: str) -> tuple[int, ...]:
    """The numbers at the begin of a version such as "v2.2.0-rc.1"; empty if there are none."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def runtime_named(name: str) -> str:
    """CONTAINERD or CRIO, for the name that a runtime gives to plug-ins; "" for other names."""
    return next((each for each in DEFAULT_FILES if each.replace("-", "").lower() in name.replace("-", "").lower()), "")


def read_config(file: Path | None, *, runtime: str) -> NriConfig:
    """Read `file`, or the default file of `runtime`; without a known runtime, of the one that is installed. Raises
    UnreadableConfig."""
    if file is None:
        installed = [each for each, path in DEFAULT_FILES.items() if path.exists() or _drop_ins(path).is_dir()]
        known = [runtime] if runtime else installed
        if len(known) != 1:
            what = " and ".join(str(DEFAULT_FILES[each]) for each in known)
            message = f"both {what} exist" if known else "this system has no settings of containerd or CRI-O"
            hint = "run the doctor on the node, as root, with qrm.runtime_config set to the file of the runtime in use"
            raise UnreadableConfig(message, hint)
        file = DEFAULT_FILES[known[0]]
    document = _merged(file)
    if runtime == CRIO or "crio" in document:
        return _of_crio(file, document)
    return _of_containerd(file, document)


def _drop_ins(file: Path) -> Path:
    return file.with_name(f"{file.name}.d")


def _merged(file: Path) -> dict[str, Any]:
    """The file with its drop-ins (CRI-O) and imports (containerd), later files over earlier ones."""
    document: dict[str, Any] = {}
    pending, read = [file, *(sorted(_drop_ins(file).iterdir()) if _drop_ins(file).is_dir() else ())], set[Path]()
    if len(pending) > 1 and not file.exists():
        pending = pending[1:]  # CRI-O needs no main file
    while pending and len(read) < MAX_FILES:
        path = pending.pop(0)
        if path in read:
            continue
        read.add(path)
        try:
            found = decode_toml(read_text(path))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or f"not valid TOML: {error}"
            hint = "run the doctor on the node, as root, or set qrm.runtime_config to the file of the container runtime"
            raise UnreadableConfig(f"cannot read {path}: {why}", hint) from None
        _merge(document, found)
        for pattern in _texts(found.get("imports")):
            relative = pattern.lstrip("/")
            pending += sorted((Path("/") if relative != pattern else path.parent).glob(relative)) if relative else []
    return document


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _of_containerd(file: Path, document: Mapping[str, Any]) -> NriConfig:
    plugin = "io.containerd.nri.v1.nri"
    table = _table(document, "plugins", plugin)
    validator = _table(table, "default_validator")
    disabled = True if plugin in _texts(document.get("disabled_plugins")) else table.get("disable")
    return NriConfig(
        CONTAINERD,
        file,
        on=None if disabled is None else disabled is not True,
        connections=table.get("disable_connections") is not True,
        socket=str(table.get("socket_path") or ""),
        validator=validator.get("enable") is True,
        required=_texts(validator.get("required_plugins")),
        toleration=str(validator.get("tolerate_missing_plugins_annotation") or ""),
    )


def _of_crio(file: Path, document: Mapping[str, Any]) -> NriConfig:
    table = _table(document, "crio", "nri")
    validator = _table(table, "default_validator")
    enabled = table.get("enable_nri")
    return NriConfig(
        CRIO,
        file,
        on=None if enabled is None else enabled is True,
        connections=table.get("nri_disable_connections") is not True,
        socket=str(table.get("nri_listen") or ""),
        validator=validator.get("nri_enable_default_validator") is True,
        required=_texts(validator.get("nri_validator_required_plugins")),
        toleration=str(validator.get("nri_validator_tolerate_missing_plugins_annotation") or ""),
    )


def _table(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A table within a document; empty if there is none."""
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
