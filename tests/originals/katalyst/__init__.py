"""Comparison with Katalyst."""
