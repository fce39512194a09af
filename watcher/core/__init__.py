"""Computations and values of the service, without I/O: each folder has one subject.

A sample passes `naming`, `review`, `windows` and `publishing` in this order; watcher/tick/pipeline.py calls them.

Pure: no I/O, no clock.
"""
