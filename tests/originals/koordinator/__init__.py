"""Koordinator: its plug-in LoadAwareScheduling, and its type NodeMetric."""
