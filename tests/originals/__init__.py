"""Comparisons with the original implementations, which run as Go programs: `make originals`."""
