"""Syntax of queries that the settings check without a provider: PromQL selectors, label matchers, InfluxDB dialects."""
