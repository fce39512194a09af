"""One module per command of `load-watcher`: each parses its arguments and calls the package that does the work.

Code shared by the commands is in load_watcher/cli. Dependencies of the work itself are imported when a command runs, so
that `--help`, shell completion and usage errors stay fast: importing NumPy takes longer than the rest.
"""
