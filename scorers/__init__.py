"""Scheduling plug-ins, the kube-scheduler extender that runs them, and shadow mode."""
