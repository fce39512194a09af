"""A simulated cluster for `load-watcher demo`: machines, workloads and their load.

The usage of a pod is a function of seed, pod and time; the usage of a node is the sum over its pods at that time. So
the past can be computed at once, and a placed pod changes the load seen by the next decision.

    machines.py    nodes of the cluster
    workloads.py   pods: requests, limits and behaviour
    load.py        usage of pods and nodes by time
    faults.py      monitoring faults and their effect on samples
    objects.py     nodes and pods as Kubernetes objects
    cluster.py     pod lifecycle: arrival, placement, end
"""
