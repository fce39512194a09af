"""Typed mappings: the kinds of values, the declaration of settings, and the reader that reports all problems.

Each setting is declared once, in the package that reads it. Nothing here knows a section.
"""
