"""Traces: the events of a cluster as CSV, which a spreadsheet can open; docs/simulation.md describes the format.

`load-watcher record` and `load-watcher simulate --generate` write traces; `load-watcher simulate` and the provider
`replay` read them.

    records.py     pure: the kinds of records
    parsing.py     pure: rows of text to records, with errors by line and column
    writing.py     pure: records to rows, byte for byte reproducible
    files.py       trace files, compressed with gzip if the name ends in .gz
    generating.py  pure: generated clusters, in named scenarios
    alibaba.py     conversion of Alibaba's trace
    pattern.py     pure: load of nodes at any time of a trace or history, for replay

A recorder writes events in order of time, as they happen: first all nodes and existing pods (each with the node that it
is bound to) at the start time, then the load of nodes once per tick, arrivals, bindings, usage of pods, and removals.
After `flush` the file is readable up to this point, even if the process is killed:

    with open_writer(path) as writer:
        writer.write(Begin(time, "https://watcher.example:2020"))
        writer.write(NodeRecord(time, "node-1", cores=8.0, bytes=32 << 30))
        writer.write(PodRecord(time, uid, "shop/cart-1", cores=0.5, bytes=512 << 20, owner="ReplicaSet/cart"))
        writer.write(BindRecord(time, uid, "node-1"))
        writer.write(LoadRecord(time, "node-1", cores=0.4, bytes=1 << 30))
        writer.write(UsageRecord(time, uid, cores=0.2, bytes=300 << 20))
        …
        writer.write(EndRecord(time))

`LoadRecord` is the usage of a node outside of the trace's pods. The total usage of a node at a given time, which
`replay` returns as samples, is its last load before this time plus the last usage of each pod bound to it at this time:

    for record in read_trace(path): match record: case LoadRecord(): … case UsageRecord(): … case BindRecord(): …

In a trace without pods the load records contain the total load. `replay` uses times relative to `Begin.time`.
"""
