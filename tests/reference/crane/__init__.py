"""Emulates the decisions of the agent of Crane v0.11.0 (github.com/gocrane/crane, pkg/ensurance), with its faults.

The emulator takes the values of agent/model.py and uses no rule of the product. `python -m tests.originals crane`
compares it with the original. Each module names the files of the original.
"""
