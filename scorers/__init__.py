"""The scheduling plug-ins, clients of the watcher API. Nothing here yet: they come with the kube-scheduler extender."""
