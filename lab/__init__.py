"""The laboratory: programs that measure, record, simulate and compare, for the choice of a scheduling policy.

Each package has the work of one command in `load_watcher.commands`; `traces` and `fleet` are shared, and `replay` is a
source of samples for the service. Only those commands import this package; a service runs without it.
"""
