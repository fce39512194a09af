"""Decisions of the agent: samples and policies in, a plan with reasons out.

`analyzer` evaluates the rules, `planner` selects pods and steps, `ledger` has the steps whose effect is not visible
yet, and `plan` defines the result. agent/service/loop.py calls them in this order.

Pure: no I/O, no clock.
"""
