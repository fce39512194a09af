"""Marks on nodes and the pressure of nodes: the load as schedulers and balancers without load-watcher's code read it.

`excess` compares each node with the fleet. From it, `degrees` chooses the nodes with soft taints, and `pressure` the
signal for balancers; `annotation` has the score that the plug-in NodeMetadata of scheduler-plugins reads.
"""
