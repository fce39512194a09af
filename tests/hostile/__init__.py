"""Outbound clients against a server that sends hostile responses."""

TOKEN = "s3cret-token-of-the-tests"
