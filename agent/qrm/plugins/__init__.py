"""The resource plug-ins of our own: CPUs, memory and network cards."""
