"""Provider for InfluxDB 1.x, 2.x and 3.x with Telegraf's schema: InfluxQL or Flux. Start with `provider`.

`queries` builds the queries, `influxql` and `flux` send them, `responses` parses points, and `cpu_load` computes loads.
"""
