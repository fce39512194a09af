"""The client of the watcher API, used by the scorers, the agent and the tools to read node load.

A scheduler requests scores hundreds of times per second and must not wait for the network. A client therefore stores
the last good copy of the columns, renews it in the background, and returns data from memory (`polling`). The returned
data (`arrays`) includes its age, and the client raises an error instead of returning data older than the caller's
limit, so that the caller can score without metrics instead of using outdated load.

`WatcherClient` (over HTTP) and `InProcessClient` (in the process of the service) have the same interface and build
`Columns` and `PodColumns` from the same documents. `NodeClient` requests one node and stores no copy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from watcher.client.errors import WatcherError
from watcher.client.node import NodeClient, NodeLoad

if TYPE_CHECKING:
    from watcher.client.arrays import (
        Columns,
        NodeForecasts,
        NodeSilence,
        PodColumns,
        columns_of_snapshot,
        is_same_document,
        to_columns,
        to_pods,
    )
    from watcher.client.description import ServiceDescription
    from watcher.client.in_process import InProcessClient
    from watcher.client.over_http import WatcherClient
    from watcher.client.polling import Client

__all__ = [
    "Client",
    "Columns",
    "InProcessClient",
    "NodeClient",
    "NodeForecasts",
    "NodeLoad",
    "NodeSilence",
    "PodColumns",
    "ServiceDescription",
    "WatcherClient",
    "WatcherError",
    "columns_of_snapshot",
    "is_same_document",
    "to_columns",
    "to_pods",
]

_MODULES = {
    "Client": "polling",
    "InProcessClient": "in_process",
    "ServiceDescription": "description",
    "WatcherClient": "over_http",
}


def __getattr__(name: str) -> object:
    """Import the other clients on first use: they need NumPy, which would take a quarter of the agent's memory."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'arrays')}"), name)
