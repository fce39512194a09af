"""Benchmarks of load-watcher: its speed compared with the Go load-watcher, and the cost of its ticks.

A result depends on the machine and, on a shared machine, on the time of the measurement. Therefore programs are
compared alternately within one run, and tables show the ratio. Each `bench_*.py` is a program that prints Markdown;
`python -m benchmarks` runs all of them, and `--write-docs` writes their output to docs/concepts/performance.md.
"""
