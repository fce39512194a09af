"""Code shared by the commands: options, settings, errors and exit codes, tables, progress output."""
