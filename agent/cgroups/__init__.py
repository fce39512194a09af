"""Access to the control groups (cgroups) of pods and containers: paths, usage and limits.

Linux has two cgroup interfaces: version 1 has a directory tree for each controller, version 2 one tree for all. The
kubelet names its groups according to its cgroup driver (cgroupfs or systemd). Callers of this package see neither
difference: `detection` finds the layout and opens the tree, `base` defines the interface, `v1` and `v2` implement it,
`values` are what they read and write, and `paths` builds and parses group names.

The package only reads and writes files; it contains no policy.
"""
