"""The sources of samples. Each provider has a module or a folder, and only it imports the library of its source.

`base` defines the interface; docs/learn/own-source.md explains it. The table of the providers is in
watcher/platform/provider_names.py, and `registry` imports only the selected one. Other packages register providers in
the entry-point group `load_watcher.providers` (a function from Settings to a Provider).

`http` sends requests, and `prometheus_api` queries to Prometheus; with `config` and `errors`, the node agent uses them,
too.
"""
