"""Policies: NodeQOS, PodQOS and AvoidanceAction of `ensurance.crane.io/v1alpha1`, in files or in the cluster.

`objects` reads one object by Crane's rules, `policies` a whole set and what of it holds for a node, `source` keeps the
set that is in force while files and objects change.
"""

from agent.policy.objects import read_percentage, whole_number
from agent.policy.policies import KnownMetrics, PolicySet, Reading, TriggerOnly, read_texts
from agent.policy.problems import Notice, Place, Problem
from agent.policy.source import ClusterPolicies, DirectoryPolicies, InForce, PolicySource, check_policies

__all__ = [
    "ClusterPolicies",
    "DirectoryPolicies",
    "InForce",
    "KnownMetrics",
    "Notice",
    "Place",
    "PolicySet",
    "PolicySource",
    "Problem",
    "Reading",
    "TriggerOnly",
    "check_policies",
    "read_percentage",
    "read_texts",
    "whole_number",
]
