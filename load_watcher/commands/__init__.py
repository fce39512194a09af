"""One module per command of `load-watcher`: each parses its arguments and calls the package that does the work.

Shared code: options and their parsing (options.py), loading of the settings (loading.py), error output and exit codes
(ending.py), tables (printing.py) and progress output (progress.py). Dependencies of the work itself are imported when a
command runs, so that `--help`, shell completion and usage errors stay fast: importing NumPy takes longer than the rest.
"""
