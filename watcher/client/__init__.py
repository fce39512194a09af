"""The client of the watcher API: what the scorers, the agent and the tools use to read node load.

A scheduler asks for scores hundreds of times a second and must never wait for the network in between. So a client keeps
the last good copy of the columns, renews it in the background, and answers from memory (copies.py). What it answers
with (arrays.py) carries its age, and it refuses to answer with anything older than the caller can bear: old load is a
reason to score without metrics, not to pretend.

Two clients, one interface: `WatcherClient` over HTTP, `InProcessClient` beside the service in one process. Both make
their `Columns` and `Pods` from the same documents, so that nobody can tell them apart. Pods are a copy of their own:
their failures are not those of the nodes. A third, `NodeClient`, asks for one node, and keeps no copy.
"""

from watcher.client.arrays import Columns, Pods, to_columns, to_pods
from watcher.client.errors import WatcherError
from watcher.client.in_process import InProcessClient
from watcher.client.node import NodeClient, NodeLoad
from watcher.client.over_http import WatcherClient
from watcher.client.polling import Client

__all__ = [
    "Client",
    "Columns",
    "InProcessClient",
    "NodeClient",
    "NodeLoad",
    "Pods",
    "WatcherClient",
    "WatcherError",
    "to_columns",
    "to_pods",
]
