"""Traces: what happened in a cluster, as a table of events that a spreadsheet opens; docs/simulation.md says what is in
it. They are written by `load-watcher record` and `load-watcher simulate --generate`, and read by `load-watcher
simulate` and the provider `replay`.

    records.py     pure: the kinds of records
    parsing.py     pure: rows of text to records, and what is wrong with them
    writing.py     pure: records to rows, the same bytes for the same records
    files.py       the files, gzip where the name ends in .gz
    generating.py  pure: clusters that are not there, in named scenarios
    alibaba.py     Alibaba's tables as a trace

Who records opens a writer and gives it what happens, in the order of time, as it happens: all nodes and the pods that
are there already (each with the node that it is bound to) at the time of the beginning, and from then on the load of
nodes once a tick, arrivals, bindings, what pods use, and what went; `flush` after each tick leaves a file that can be
read to there, whatever becomes of the process:

    with open_writer(path) as writer:
        writer.write(Begin(time, "https://watcher.example:2020"))
        writer.write(NodeRecord(time, "node-1", cores=8.0, bytes=32 << 30))
        writer.write(PodRecord(time, uid, "shop/cart-1", cores=0.5, bytes=512 << 20, owner="ReplicaSet/cart"))
        writer.write(BindRecord(time, uid, "node-1"))
        writer.write(LoadRecord(time, "node-1", cores=0.4, bytes=1 << 30))
        writer.write(UsageRecord(time, uid, cores=0.2, bytes=300 << 20))
        …
        writer.write(EndRecord(time))

`LoadRecord` is what a node uses beside the pods of the trace. So what a whole node used at a time, which is what
`replay` gives as samples, is its last load before that time and the last usage of each pod that was bound to it then:

    for record in read_trace(path): match record: case LoadRecord(): … case UsageRecord(): … case BindRecord(): …

A trace without pods has the whole load in its load records. `replay` takes times as distances from `Begin.time`.
"""
