"""One file per command of `load-watcher`: from its words to one call of the part that does the work.

What commands share is here too: flags and how they are read (options.py), the settings that come of them (loading.py),
how a command says what went wrong (ending.py), and how far it is (progress.py). What the work itself needs is imported
when a command runs, so that `--help`, completion and typing errors answer at once: NumPy alone takes longer to load
than all of this.
"""
