"""The QoS Resource Manager: assigns CPUs, memory nodes and network cards to containers."""
