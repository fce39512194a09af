"""Usage by koordlet's rules as columns of a document, and back."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from watcher.core.koordinator.aggregates import aggregates_document, usages_of
from watcher.core.koordinator.report import NodeUsages

USAGES = NodeUsages(
    usage={"CPU": np.array([25.0, np.nan]), "Memory": np.array([50.0, 60.0])},
    aggregated={("CPU", "p95", 300): np.array([np.nan, 75.0])},
    interval=np.array([60.0, 90.0]),
    period=np.array([300, 600]),
)


@pytest.mark.parametrize("nodes", [0, 2])
def test_usages_come_back(nodes: int):
    given = replace(
        USAGES,
        usage={key: each[:nodes] for key, each in USAGES.usage.items()},
        aggregated={key: each[:nodes] for key, each in USAGES.aggregated.items()},
        interval=USAGES.interval[:nodes],
        period=USAGES.period[:nodes],
    )
    found = usages_of(aggregates_document(given))
    assert found.usage.keys() == given.usage.keys()
    for key, values in given.usage.items():
        np.testing.assert_array_equal(values, found.usage[key])
    assert found.aggregated.keys() == given.aggregated.keys()
    np.testing.assert_array_equal(given.aggregated["CPU", "p95", 300], found.aggregated["CPU", "p95", 300])
    assert (given.interval.tolist(), given.period.tolist()) == (found.interval.tolist(), found.period.tolist())


def test_columns_of_another_length_are_refused():
    document = aggregates_document(USAGES)
    short = msgspec.structs.replace(document.columns[0], values=[1.0])
    with pytest.raises(ValueError, match="a column has 1 values for 2 rows"):
        usages_of(msgspec.structs.replace(document, columns=[short]))
