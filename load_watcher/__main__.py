"""`python -m load_watcher` is the command `load-watcher`."""

from load_watcher.main import main

if __name__ == "__main__":
    main(prog_name="load-watcher")
