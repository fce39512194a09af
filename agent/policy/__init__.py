"""Policies: NodeQOS, PodQOS and AvoidanceAction of `ensurance.crane.io/v1alpha1`, in files or in the cluster.

`objects` reads one object by Crane's rules, `policies` a whole set and what of it holds for a node, `source` keeps the
set that is in force while files and objects change.
"""
