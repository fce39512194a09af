"""Trimaran: the four score plug-ins of scheduler-plugins that read load-watcher."""
