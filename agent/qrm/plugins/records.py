"""What every plug-in of ours keeps: one record for each container that has something, by pod UID and container name.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Record(Protocol):
    """Whose it is."""

    @property
    def pod_uid(self) -> str: ...

    @property
    def container_name(self) -> str: ...


RecordT = TypeVar("RecordT", bound=Record)


class Records(dict[tuple[str, str], RecordT]):
    """By (pod UID, container name)."""

    @classmethod
    def of(cls, pods: Iterable[dict[str, RecordT]]) -> Records[RecordT]:
        """Those of a document, as `by_pod` wrote them."""
        return cls({(each.pod_uid, each.container_name): each for pod in pods for each in pod.values()})

    def by_pod(self) -> dict[str, dict[str, RecordT]]:
        """By pod and by container, sorted."""
        found: dict[str, dict[str, RecordT]] = {}
        for (pod, container), record in sorted(self.items(), key=lambda item: item[0]):
            found.setdefault(pod, {})[container] = record
        return found

    def remove_pod(self, uid: str) -> None:
        """All of a pod's; nothing happens where there is none."""
        for key in [key for key in self if key[0] == uid]:
            del self[key]
