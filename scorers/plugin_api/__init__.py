"""The interface of scheduling plug-ins: protocols, arguments, and the messages of kube-scheduler.

`framework` defines the protocols and the results of a plug-in; docs/learn/own-plugin.md explains them with an example.
"""
