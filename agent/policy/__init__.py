"""Policies: NodeQOS, PodQOS and AvoidanceAction of `ensurance.crane.io/v1alpha1`, from files or from the cluster.

`objects` reads and validates one object by Crane's rules, `policies` reads a whole set and selects the policies that
apply to a node, `source` keeps the active set up to date while files and objects change.
"""
