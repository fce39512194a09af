"""The cluster itself: nodes, images, pods, and a kubelet that is killed."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.deployed import created, pod, wait_ready
from tests.cluster.images import AGENT, BUSYBOX, SERVICE
from tests.waiting import wait_for


def test_every_node_has_the_images_of_this_checkout(cluster: Cluster):
    for node in cluster.nodes:
        listed = node.run("ctr", "-n", "k8s.io", "images", "ls", "-q").split()
        assert {BUSYBOX, SERVICE, AGENT} <= set(listed)


def test_pods_outlive_a_kubelet_that_is_killed(cluster: Cluster):
    node = cluster.nodes[0]
    with created(cluster, pod("lasting", node.name, command=("sleep", "100000"))):
        (before,) = wait_ready(cluster, "default", "app=lasting", 1)
        node.restart("kubelet")
        wait_for(cluster.all_ready, what="the node to be Ready again", timeout=120)
        (after,) = wait_ready(cluster, "default", "app=lasting", 1)
        of = [each["status"]["containerStatuses"][0] for each in (before, after)]
        assert of[0]["containerID"] == of[1]["containerID"]
        assert of[0]["restartCount"] == of[1]["restartCount"] == 0
