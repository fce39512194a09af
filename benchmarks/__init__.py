"""What measures: how quick load-watcher is beside what it takes the place of, and what its ticks cost.

A number of a benchmark says little without its machine, and on a shared machine little without its minute. So whatever
is compared is measured in turns within one run, and the table says the ratio. Each `bench_*.py` is a program that
prints Markdown; `python -m benchmarks` runs them all, and `--write-docs` puts what they print into docs/performance.md.
"""
