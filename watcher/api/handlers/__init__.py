"""Handlers of the API, one module for each group of paths."""
