"""The kube-scheduler extender: HTTP handlers, and the service that keeps their cluster table up to date.

`handlers` answers filter, prioritize, bind and explain; `service` connects it with the informers, the load, the
decision log and shadow mode.
"""
