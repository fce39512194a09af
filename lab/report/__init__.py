"""Report about a cluster from its Prometheus: when nodes are hot, what could be freed, which workloads make the load,
and what other placements would have changed.

`data` sends the queries, `analyse` and `findings` compute the results, `replay` simulates other placements, and `pages`
writes the results.
"""
