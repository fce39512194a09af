"""Write what the Helm chart has from elsewhere: copies of the alerts, the policy definitions and the dashboards, as a
chart cannot read files outside of its directory, and the JSON schema of the settings in values.schema.json.

    python -m tests.deploy.chart_files

A test compares the files.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.qrm.settings import QrmSettings
from agent.service.settings import AgentSettings, Query
from tests.deploy.rendering import CHART
from tests.real.parts import REPOSITORY
from watcher.platform.settings.reference import json_schema, table_schema

MARK = ',\n  "definitions": {\n'
"""Begin of the generated part of values.schema.json."""


def generated() -> Iterator[tuple[Path, str]]:
    """Yield the files of the chart that have another source, with their contents."""
    yield CHART / "alerts.yaml", (REPOSITORY / "deploy/alerts.yaml").read_text()
    yield CHART / "crds/policies.yaml", (REPOSITORY / "deploy/agent/crds.yaml").read_text()
    for dashboard in sorted((REPOSITORY / "dashboards").glob("*.json")):
        yield CHART / "dashboards" / dashboard.name, dashboard.read_text()
    schema = CHART / "values.schema.json"
    yield schema, schema.read_text().partition(MARK)[0] + formatted(definitions())


def definitions() -> dict[str, Any]:
    """Return the JSON schemas of the settings tables, to which the schema of the values refers."""
    agent = table_schema(AgentSettings)
    agent["properties"]["queries"] = {"type": ["object", "null"], "additionalProperties": table_schema(Query)}
    return {"settings": json_schema(), "agent": agent, "qrm": table_schema(QrmSettings)}


def formatted(tables: dict[str, Any]) -> str:
    """Format the end of the schema of the values, with each setting on a line."""
    blocks = []
    for name, table in tables.items():
        rows = ",\n".join(f"      {json.dumps(key)}: {json.dumps(row)}" for key, row in table["properties"].items())
        outer = json.dumps({key: value for key, value in table.items() if key != "properties"})[1:-1]
        blocks.append(f'    "{name}": {{{outer}, "properties": {{\n{rows}\n    }}}}')
    return MARK + ",\n".join(blocks) + "\n  }\n}\n"


if __name__ == "__main__":
    for path, content in generated():
        path.parent.mkdir(exist_ok=True)
        if path.is_symlink():
            path.unlink()
        path.write_text(content)
