"""The metrics that the agent acts on, one file each, and the table that names them.

A new metric is one file, one line here and one test file; outside packages add theirs through the entry-point group
`load_watcher.agent_metrics` (agent/service/custom_metrics.py). A metric that is not in the table can trigger a rule,
which then keeps new pods away; nothing is throttled or evicted for it.

Pure: no I/O, no clock.
"""
