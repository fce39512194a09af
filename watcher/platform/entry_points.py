"""Loads extensions that other packages provide through entry points: providers, scheduling plug-ins, metrics of the
agent, resource plug-ins.

The possible errors are the same for all groups; callers convert them to their own messages.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any


class AmbiguousEntryPoint(LookupError):
    """Several packages provide an entry point of this name; `packages` are the names of the packages."""

    def __init__(self, homes: str) -> None:
        super().__init__(f"several packages provide it: {homes}")
        self.packages = homes


class EntryPointLoadError(ImportError):
    """The package raised an exception, which is in the message; `packages` is the name of the package."""

    def __init__(self, homes: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.homes = homes


class ExtensionError(ValueError):
    """An extension cannot be used; `hint` describes the fix."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def names(group: str) -> frozenset[str]:
    """Return the names of a group's entry points."""
    return frozenset(point.name for point in entry_points(group=group))


def packages_of(group: str, name: str) -> str:
    """Return the packages that provide this entry point, separated by commas; "" if none does."""
    return ", ".join(sorted(map(_package, entry_points(group=group, name=name))))


def load(group: str, name: str) -> Any:
    """Import the object of an entry point. Raises KeyError if there is none, AmbiguousEntryPoint,
    EntryPointLoadError."""
    points = tuple(entry_points(group=group, name=name))
    if not points:
        raise KeyError(name)
    if len(points) > 1:
        raise AmbiguousEntryPoint(packages_of(group, name))
    try:
        return points[0].load()
    except Exception as error:  # importing the package's code may raise anything
        raise EntryPointLoadError(_package(points[0]), error) from error


def build(group: str, name: str, *given: Any, what: str) -> Any:
    """Call the function of an entry point with `given` and return its result; `what` is the kind of extension, for
    messages. Raises Refused if it fails."""
    try:
        return load(group, name)(*given)
    except AmbiguousEntryPoint as error:
        raise ExtensionError(
            f"several packages provide the {what} {name}: {error.packages}", "Uninstall all but one of them."
        ) from error
    except Exception as error:  # importing or calling the package's code may raise anything
        package = packages_of(group, name)
        reason = error if isinstance(error, EntryPointLoadError) else f"{type(error).__name__}: {error}"
        raise ExtensionError(
            f"cannot load the {what} {name} from the package {package}: {reason}",
            f"Check that {package} supports this version of load-watcher and that its dependencies are installed.",
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
