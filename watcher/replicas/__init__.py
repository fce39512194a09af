"""Samples of other replicas: `peers` fetches them at the start, `transfer` encodes and decodes them."""
