"""Access to the node agents and QoS Resource Managers of the cluster, for the dashboard and for pod usage.

`discovery` finds their addresses by host name or label, `pages` fetches their pages, and `usage` fetches pod usage.
"""
