"""Providers of the cloud monitoring services Datadog and SignalFx; `provider` has their shared code."""
