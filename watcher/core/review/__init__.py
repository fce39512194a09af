"""The review of samples: detects wrong samples, frozen exporters and partial outages, and applies remedies.

`samples` reviews one batch, `faults` whole series, and `outage` the list of nodes; `findings` is their log.
docs/reference/review.md lists all findings.
"""
