"""The QoS Resource Manager as a plug-in of NRI, the Node Resource Interface of containerd and CRI-O.

The runtime calls the plug-in before it creates a container, so that CPUs, memory nodes, environment variables and
annotations are set before the container starts. `ttrpc.py` connects and exchanges messages, `messages.py` converts
them, and `plugin.py` calls the manager.
"""
