"""Checks of the configuration of kube-scheduler: profiles, plug-ins, extenders. Start in `configuration`."""
