"""Decoders of bytes from outside the process: responses, request bodies, files, and rows of a database. Whatever the
bytes are, each decoder raises msgspec.DecodeError (a ValueError) and nothing else. The decoders of the libraries also
raise UnicodeDecodeError, RecursionError, and ValueError for an integer of more than 4,300 digits. Therefore the linter
forbids them outside of this package (TID251 in pyproject.toml)."""
