"""What other packages add to this installation, by entry points: providers, scheduling plug-ins, metrics of the agent,
resource plug-ins.

Whoever loads them tells the trouble in words of its own; what can go wrong is the same for all.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any


class InSeveralPackages(LookupError):
    """More than one package has an entry point of this name, and neither is taken in silence; `homes` are their
    names."""

    def __init__(self, homes: str) -> None:
        super().__init__(f"several packages have it: {homes}")
        self.homes = homes


class CannotBeLoaded(ImportError):
    """The package's code raised; the message is what, `homes` the package's name."""

    def __init__(self, homes: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.homes = homes


class Refused(ValueError):
    """What another package brings cannot be taken; `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def names(group: str) -> frozenset[str]:
    """The entry points of a group."""
    return frozenset(point.name for point in entry_points(group=group))


def home(group: str, name: str) -> str:
    """The packages that have such an entry point; "" where none has."""
    return ", ".join(sorted(map(_package, entry_points(group=group, name=name))))


def load(group: str, name: str) -> Any:
    """What the entry point names. Raises KeyError where there is none, InSeveralPackages, CannotBeLoaded."""
    points = tuple(entry_points(group=group, name=name))
    if not points:
        raise KeyError(name)
    if len(points) > 1:
        raise InSeveralPackages(home(group, name))
    try:
        return points[0].load()
    except Exception as error:  # whatever the import of foreign code may raise
        raise CannotBeLoaded(_package(points[0]), error) from error


def made(group: str, name: str, *given: Any, what: str) -> Any:
    """What the function that the entry point names makes of `given`; `what` it is, for people. Raises Refused
    where it brings nothing."""
    try:
        return load(group, name)(*given)
    except InSeveralPackages as error:
        raise Refused(f"the {what} {name} is in several packages: {error.homes}", "Uninstall all but one.") from error
    except Exception as error:  # whatever foreign code may raise, when it is imported or asked
        package = home(group, name)
        reason = error if isinstance(error, CannotBeLoaded) else f"{type(error).__name__}: {error}"
        raise Refused(
            f"the {what} {name} cannot be had from the package {package}: {reason}",
            f"Is {package} made for this version of load-watcher, and are its dependencies installed?",
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
