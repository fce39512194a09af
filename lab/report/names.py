"""Names of workloads: the controller behind a pod.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re

_OF_REPLICASET = re.compile(r"-[a-z0-9]{5,10}$")
_OF_JOB = re.compile(r"-[0-9]{6,}$")
_POD_OF_DEPLOYMENT = re.compile(r"-[a-z0-9]{7,10}-[a-z0-9]{5}$")
_POD_OF_SET = re.compile(r"-(?:[0-9]{1,4}|[a-z0-9]{5})$")


def controller_of(kind: str, name: str) -> str:
    """KIND/NAME of the workload behind the owner of a pod: the Deployment of a ReplicaSet, the CronJob of a Job, by the
    names that Kubernetes gives them. Empty without an owner."""
    if kind == "ReplicaSet" and _OF_REPLICASET.search(name):
        return f"Deployment/{_OF_REPLICASET.sub('', name)}"
    if kind == "Job" and _OF_JOB.search(name):
        return f"CronJob/{_OF_JOB.sub('', name)}"
    return "" if kind in ("", "<none>") else f"{kind}/{name}"


def workload_of(pod: str, owner: str) -> str:
    """The workload of a pod: its owner, or the name of the pod without the parts that Kubernetes generates."""
    if owner:
        return owner
    short = _POD_OF_DEPLOYMENT.sub("", pod)
    return short if short != pod else _POD_OF_SET.sub("", pod)
