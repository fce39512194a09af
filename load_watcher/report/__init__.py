"""Report about a cluster from its Prometheus: when nodes are hot, what could be freed, which workloads make the load,
and what other placements would have changed.

`collect` sends the queries, `analyse` computes the findings, `replay` simulates other placements, and `page` and
`document` write the results.
"""
