"""The QoS Resource Manager as a plug-in of NRI, the Node Resource Interface of containerd and CRI-O.

The runtime calls the plug-in before it creates a container, so that CPUs, memory nodes, environment variables and
annotations are set before the container starts. `frames.py` and `messages.py` compute bytes and messages;
`connection.py` and `session.py` do the I/O; `plugin.py` calls the manager.
"""
