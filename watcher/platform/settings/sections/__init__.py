"""The sections of load-watcher.toml that the service reads: each setting with type, default and meaning.

The agent and the QoS Resource Manager declare their sections in agent/service/settings.py and agent/qrm/settings.py.
"""
