"""The documents of the API: their types, and the encoding of a snapshot to compressed bytes.

`documents` encodes a snapshot once per tick, `wire` defines the formats, `exposition` writes Prometheus' text format.
"""
