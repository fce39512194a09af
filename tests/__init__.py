"""The tests, in the layout of the packages; `real/` starts real components, `conftest.py` has the fixtures."""
