"""Koordinator's NodeMetric as a CustomResourceDefinition with a structural schema, written after Koordinator's sources:
a real API server prunes fields that are not in it, and refuses values of other types."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "format": "int64"}
QUANTITY: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def table(**properties: Schema) -> Schema:
    """An object with these fields."""
    return {"type": "object", "properties": properties}


def a_list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def a_map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


RESOURCES = table(resources=a_map(QUANTITY), devices=a_list({"type": "object"}))
AGGREGATED = a_list(table(duration=TEXT, usage=a_map(RESOURCES)))
POLICY = table(
    aggregateDurationSeconds=WHOLE,
    reportIntervalSeconds=WHOLE,
    nodeAggregatePolicy=table(durations=a_list(TEXT)),
    nodeMemoryCollectPolicy={
        **TEXT,
        "enum": ["usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"],
    },
)
STATUS = table(
    updateTime={**TEXT, "format": "date-time"},
    nodeMetric=table(
        nodeUsage=RESOURCES,
        systemUsage=RESOURCES,
        aggregatedNodeUsages=AGGREGATED,
        aggregatedSystemUsages=AGGREGATED,
    ),
    podsMetric=a_list(
        table(namespace=TEXT, name=TEXT, priority=TEXT, qos=TEXT, podUsage=RESOURCES, extensions={"type": "object"})
    ),
    hostApplicationMetric=a_list(table(name=TEXT, usage=RESOURCES, priority=TEXT, qos=TEXT)),
    prodReclaimableMetric=table(resource=RESOURCES),
)
NODE_METRIC = table(
    apiVersion=TEXT,
    kind=TEXT,
    metadata={"type": "object"},
    spec=table(metricCollectPolicy=POLICY),
    status=STATUS,
)
