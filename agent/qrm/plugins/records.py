"""The state that each built-in plug-in stores: one record per container with an allocation, by pod UID and container
name.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class ContainerRecord(Protocol):
    """A record that names its container."""

    @property
    def pod_uid(self) -> str: ...

    @property
    def container_name(self) -> str: ...


RecordT = TypeVar("RecordT", bound=ContainerRecord)


class Records(dict[tuple[str, str], RecordT]):
    """Records by (pod UID, container name)."""

    @classmethod
    def of(cls, pods: Iterable[dict[str, RecordT]]) -> Records[RecordT]:
        """The records of a state document, in the format of `by_pod`."""
        return cls({(each.pod_uid, each.container_name): each for pod in pods for each in pod.values()})

    def by_pod(self) -> dict[str, dict[str, RecordT]]:
        """The records by pod UID and container name, sorted."""
        found: dict[str, dict[str, RecordT]] = {}
        for (pod, container), record in sorted(self.items(), key=lambda item: item[0]):
            found.setdefault(pod, {})[container] = record
        return found

    def remove_pod(self, uid: str) -> None:
        """Remove all records of a pod. A pod without records is ignored."""
        for key in [key for key in self if key[0] == uid]:
            del self[key]
