"""Stored decisions: their rows, the queue of those to be written, and `store`, which reads both."""
