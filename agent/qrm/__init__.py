"""The QoS Resource Manager: which CPUs, memory nodes and network cards each container gets, and who decides it."""
