"""Control groups of pods and containers: where they are, what they use, and what holds them back.

Linux has two interfaces for one thing. Version 1 has a tree of directories for each controller (cpu, cpuacct, memory),
version 2 one tree for all; a *hybrid* machine has version 1's, and an empty one of version 2 beside them, which tells
of pressure. The kubelet lays its groups out in two ways, by its *driver*: cgroupfs has `/kubepods/burstable/podUID/ID`,
systemd has `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope`.

None of that is seen by who uses this room. `find_layout` looks what there is, `open_tree` gives the one interface
(`base.Tree`, `base.Group`), `paths` knows the names, `errors` says what can go wrong, once, by name.

What is here reads and writes files and decides nothing.
"""
