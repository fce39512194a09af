"""The built-in resource plug-ins: CPUs, memory and network cards."""
