"""Reads the data of a report from a Prometheus.

`collect` reads everything: `context` has what a report asks for, `nodes` reads the load of nodes, `pods` that of pods,
and `pod_requests` the requests of pods. `reading` sends a query for a long range in parts.
"""
