"""The NRI plug-in of the QoS Resource Manager with the runtime side of containerd/nri, and with containerd itself."""
