"""The manager's sources and requests outside its node's runtime: pods from the Kubernetes API or the kubelet, the
kubelet's own CPU and Memory Managers, Events and node resources in the Kubernetes API, and load windows from
load-watcher."""
