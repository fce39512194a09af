"""Policies: NodeQOS, PodQOS and AvoidanceAction of `load-watcher.io` or `ensurance.crane.io`, from files or from the
cluster.

`documents` parses files and `objects` validates one object by Crane's rules, `policy_set` checks a set and selects
the policies that apply to a node, and `source` keeps the active set up to date while files and objects change.
"""
