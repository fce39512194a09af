"""The framework of `load-watcher doctor`: `examination` runs checks, `results` defines their results."""
