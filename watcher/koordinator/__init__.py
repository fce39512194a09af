"""Publishes NodeMetric objects to the cluster, where koord-scheduler reads them; a lease elects the publishing replica.

`publisher` is the loop; watcher/core/koordinator computes the objects.
"""
