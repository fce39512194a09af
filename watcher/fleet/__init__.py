"""A simulated cluster: machines, workloads, and the load that they make, for `load-watcher demo`.

What a pod uses at a time is a function of the seed, the pod and that time, and what a node uses is the sum over the
pods that are on it then. So the past is there without anybody having waited for it, and a pod that is placed changes
the load that the next decision sees.

    machines.py    which nodes there are
    workloads.py   which pods there are, what they ask for and how they behave
    load.py        what they use at a time, and so what the nodes show
    faults.py      what the monitoring makes of that
    objects.py     the same nodes and pods as Kubernetes has them
    cluster.py     who is where: arrivals, placements, ends
"""
