"""The printed answers of the extender: `score`, `why` and `shadow`, with its client."""
