"""Traces: the events of a cluster as CSV, which a spreadsheet can open; docs/concepts/simulation.md describes the
format.

`load-watcher record` and `load-watcher simulate --generate` write traces; `load-watcher simulate` and the provider
`replay` read them. `records` defines the kinds of records and their order, `parsing` and `writing` convert them from
and to rows, and `files` opens trace files. `generating` creates clusters in named scenarios, and `pattern` computes the
load of nodes at any time of a trace, for replay.
"""
