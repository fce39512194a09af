"""Faults around a running service: what is served meanwhile, how soon each fault is detected, and how soon all is right
again.

    python -m tests.faults [--only WORD] [--write-docs]      (make faults)

Each row of the table has a `load-watcher serve` and a `load-watcher extender` of its own, with a source and a
Kubernetes API over real sockets. The source knows the true load of each node at each time, so each value that is served
can be compared with it.
"""
