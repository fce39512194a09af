"""The nodes of a cluster: in namespaces of this machine, or in a virtual machine."""
