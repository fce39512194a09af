"""Provider of the cloud monitoring service Datadog; `provider` has the code that is independent of its API."""
