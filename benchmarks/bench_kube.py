"""Memory of a copy of a cluster's pods: reduced to the used fields, and in full as sent by the API.

    python -m benchmarks.bench_kube                     # 1,000 to 20,000 pods, about a minute
    python -m benchmarks.bench_kube --pods 500

The pods belong to Deployments of ten replicas, with two containers, five labels, and the fields that a real API server
adds: managed fields, kubectl's last applied configuration, tolerations, container statuses with resources, and five
conditions. An informer in a separate process receives them over a real socket, page by page.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.bench_size import memory
from benchmarks.report import Table, amount, at_most

LIBRARIES_MB = {"kubernetes-asyncio": 16.4, "lightkube": 12.3}
"""MB per 1,000 objects, measured with lists of 5,000 nodes and 5,000 small pods, without the memory of the imports."""
GOAL_MB = 3.9
"""The same for a list that is decoded into structs."""


def pod(number: int) -> dict[str, Any]:
    """Return a pod as stored by a real API server: about 5 kB of JSON."""
    chance, app, minute = random.Random(number), f"app-{number // 10}", f"{number % 60:02}"
    moment = f"2026-11-21T10:{minute}:00Z"
    labels = {"app.kubernetes.io/name": app, "app.kubernetes.io/instance": f"{app}-prod", "version": "v1.2.3"}
    labels |= {"pod-template-hash": f"{number // 10:010x}", "team": f"team-{number // 50}"}
    names = ("env", "image", "name", "ports", "resources", *"abcdefgh")
    fields: dict[str, Any] = {f"f:{name}": {".": {}, "f:value": {}} for name in names}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{app}-7d9c", "controller": True}
    containers: list[dict[str, Any]] = [
        {
            "name": name,
            "image": f"registry.example/{name}:1.2.3",
            "env": [{"name": f"VARIABLE_{index}", "value": "a value"} for index in range(10)],
            "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
            "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        }
        for name, cpu in (("main", "250m"), ("sidecar", "50m"))
    ]
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "metadata": {
            "uid": f"{chance.getrandbits(128):032x}",
            "creationTimestamp": moment,
            "labels": labels,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(containers)},
            "ownerReferences": [owner],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "time": moment, "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": f"node-{number % 500}",
            "priority": 0,
            "containers": containers,
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                for key in ("not-ready", "unreachable")
            ],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "startTime": moment,
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": moment} for kind in conditions],
            "containerStatuses": [
                {
                    "name": each["name"],
                    "containerID": f"containerd://{chance.getrandbits(256):064x}",
                    "ready": True,
                    "allocatedResources": each["resources"]["requests"],
                    "resources": each["resources"],
                }
                for each in containers
            ],
        },
    }


async def measure(url: str, *, whole: bool) -> dict[str, float]:
    """Return memory and CPU of an informer in this process for the pods of the server at `url`."""
    from watcher.core.kubernetes.objects import PODS, CustomObject
    from watcher.core.kubernetes.wire import Resource
    from watcher.platform.kube.client import KubeClient
    from watcher.platform.kube.credentials import KubeAccess
    from watcher.platform.kube.informer import Informer

    client = KubeClient(lambda: KubeAccess(url, "a benchmark"), timeout=600.0)
    await client.list(Resource("", "v1", "nodes", CustomObject))  # sets up the connection and loads the libraries
    gc.collect()
    before, began = memory("VmRSS"), time.process_time()
    informer: Informer[Any] = Informer(client, Resource("", "v1", "pods", CustomObject) if whole else PODS)
    await informer.start()
    await informer.wait()
    spent = time.process_time() - began
    gc.collect()
    taken = memory("VmRSS") - before
    await informer.close()
    await client.close()
    return {"MB": taken, "ms": 1e3 * spent}


def apart(url: str, *, whole: bool) -> dict[str, float]:
    """Run the measurement in a separate process."""
    command = [sys.executable, "-m", "benchmarks.bench_kube", "--url", url, *(["--whole"] if whole else [])]
    measured: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return measured


def memory_table(sizes: Sequence[int]) -> Table:
    """Return the table of results."""
    from tests.fakes.kube import PODS, FakeKube

    table = Table(
        "A copy of all pods, in a separate process",
        ["pods", "received", "memory", "per 1,000 pods", "goal", "CPU of the list", "as JSON: per 1,000", "CPU"],
    )
    for size in sizes:
        with FakeKube(token="") as server:
            for number in range(size):
                server.put(PODS, f"team-{number // 50}/app-{number // 10}-{number:x}", **pod(number))
            cut, whole = apart(server.url, whole=False), apart(server.url, whole=True)
        per_thousand = 1000 * cut["MB"] / size
        table.add(
            f"{size:,}",
            amount(size * len(json.dumps(pod(0))) / 1e6, "MB"),
            amount(cut["MB"], "MB"),
            amount(per_thousand, "MB"),
            at_most(per_thousand, GOAL_MB, "MB") if size >= 5000 else "",
            amount(cut["ms"], "ms"),
            amount(1000 * whole["MB"] / size, "MB"),
            amount(whole["ms"], "ms"),
        )
    known = ", ".join(f"{name} {taken:g} MB" for name, taken in LIBRARIES_MB.items())
    table.notes.append(f"For comparison, per 1,000 objects of half the size, in lists without updates: {known}.")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, nargs="+", default=[1000, 5000, 20_000])
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url is not None:
        print(json.dumps(asyncio.run(measure(options.url, whole=options.whole))))
        return
    print(memory_table(options.pods).markdown())


if __name__ == "__main__":
    main()
