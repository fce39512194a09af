"""Koordinator's NodeMetric objects as values: node load in their format, and the policy of content and interval.

`report` computes an object; watcher/koordinator publishes it.
"""
