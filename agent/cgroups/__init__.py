"""Access to the control groups (cgroups) of pods and containers: paths, usage and limits.

Linux has two cgroup interfaces. Version 1 has a directory tree for each controller (cpu, cpuacct, memory); version 2
has one tree for all controllers. A *hybrid* machine has the trees of version 1 and an additional, empty version 2 tree
that reports pressure. The kubelet names its groups according to its cgroup *driver*: with cgroupfs
`/kubepods/burstable/podUID/ID`, with systemd
`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope`.

Callers of this package see neither difference. `find_layout` detects the layout, `open_tree` returns the common
interface (`base.Tree`, `base.Group`), `paths` builds and parses group names, `errors` defines the exceptions.

The package only reads and writes files; it contains no policy.
"""
