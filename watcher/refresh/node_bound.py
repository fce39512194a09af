"""The bound on the nodes of which samples are kept, charged to the memory of the process."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from watcher.core.naming.renames import NamedBatch
from watcher.core.review import known_nodes
from watcher.platform.memory import BUDGET

log = logging.getLogger(__name__)

NODES = "nodes of the source"
"""Name of new nodes in the memory budget."""


class NodeBound:
    """Leaves out new nodes beyond `most`."""

    def __init__(self, most: int) -> None:
        self._most = most

    def within(
        self, named: Sequence[NamedBatch], *, known: Collection[str], cluster: Collection[str], most: int | None = None
    ) -> tuple[list[NamedBatch], str]:
        """Return the batches without new nodes beyond the bound, and the reason if there are any. `known` have samples,
        `cluster` are the nodes of the cluster as far as they are known: while the memory is full, only these are
        added."""
        most = self._most if most is None else most
        names = {node for each in named for node in each.batch.nodes}
        refused = known_nodes.refused_names(
            names, known=known, cluster=cluster, most=min(most, len(known)) if BUDGET.is_full() else most
        )
        if not refused:
            return list(named), ""
        kept = [replace(each, batch=known_nodes.without_nodes(each.batch, refused)) for each in named]
        return kept, known_nodes.refusal(len(names - set(known)), refused, most=most)

    def state(self, reason: str) -> None:
        """State in the budget and in the log why nodes are left out, "" if none are."""
        before = BUDGET.refused.get(NODES)
        if reason:
            BUDGET.refuse(NODES, reason)
            if not before:
                log.warning("%s", reason)
        elif before:
            BUDGET.accept(NODES)
            log.info("all nodes of the source are kept again")
