"""Parameters of requests to the Kubernetes API: which objects, and the format of a patch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects objects of a resource on the server by `fields` ("spec.nodeName=node-1") and `labels`
    ("app=web,tier!=test"); both empty select all. The supported fields depend on the resource; the server rejects
    others. With `namespace`, the request is limited to that namespace and needs only a Role."""

    fields: str = ""
    labels: str = ""
    namespace: str = ""

    def parameters(self) -> dict[str, str]:
        """Query parameters of the API: fieldSelector and labelSelector."""
        given = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in given.items() if value}


EVERYTHING = Selector()


class PatchKind(StrEnum):
    """Patch formats, by their content type."""

    JSON = "application/json-patch+json"
    """A list of operations (RFC 6902)."""
    MERGE = "application/merge-patch+json"
    """Values that replace existing ones; lists are replaced as a whole (RFC 7396)."""
    APPLY = "application/apply-patch+yaml"
    """The fields that the manager wants to have (server-side apply): fields that it had before and does not name are
    removed, and KubeConflict if another manager has one of them with another value."""
    STRATEGIC = "application/strategic-merge-patch+json"
    """Like MERGE, except that lists with a merge key (conditions: their type) are merged by it. Not supported for
    custom resources."""
