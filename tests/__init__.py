"""The tests, laid out like the packages they test; `real/` starts real components, `conftest.py` has the fixtures."""
