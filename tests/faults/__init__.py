"""Faults around a running service: what is served meanwhile, how soon each fault is detected, and how soon all is right
again.

    python -m tests.faults [--only WORD] [--write-docs]      (make faults)

Each row of the table has a `load-watcher serve` and a `load-watcher extender` of its own, with a source and a
Kubernetes API over real sockets. The source knows the true load of each node at each time, so each value that is served
can be compared with it: a value is wrong if neither five minutes nor half of them have this average, for any end within
max_staleness and two intervals. A decision is wrong if it is made by load and accepts a node at 95 % CPU, or prefers a
busy node. The run fails if a value or decision is wrong, except those that one source cannot show, if a fault is
detected later than after two intervals, or if load is not right again.
"""
