"""The metrics that the agent acts on, one module per metric or family, and the table of them.

A new metric needs a module, a line in the table and a test file. Other packages add metrics through the entry-point
group `load_watcher.agent_metrics` (agent/service/custom_metrics.py). A rule on a collected metric that is not in the
table only keeps new pods away; it does not throttle or evict pods.

Pure: no I/O, no clock.
"""
