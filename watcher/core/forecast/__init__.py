"""Forecasts: an upper bound of a node's utilisation over the next hours, from the maxima of the last days.

`maxima` has the encoding of the stored maxima, `bound` the bound, its correction, and its record in the last week,
`states` why a node has none.
docs/concepts/forecast.md has measured results.
"""
