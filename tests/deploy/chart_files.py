"""Write the files of the Helm chart that have another source: copies of the alerts, the policy definitions and the
dashboards, because a chart cannot read files outside of its directory, and the JSON schemas of the settings and the
profiles in values.schema.json.

 python -m tests.deploy.chart_files

A test compares the files.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from agent.qrm.settings import QrmSettings
from agent.service.settings import AgentSettings, Query
from scorers.plugin_api.arguments import IGNORED_ARGUMENTS, schema_of
from scorers.profiles.profiles import LARGEST_WEIGHT, Reserve
from scorers.profiles.registry import PLUGINS, factory_of
from tests.deploy.rendering import CHART
from tests.real.parts import REPOSITORY
from tests.settings_pages import json_schema, table_schema

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
    tables = {"settings": json_schema(), "agent": agent, "qrm": table_schema(QrmSettings), "profile": profile_schema()}
    return tables | {f"{name}Args": arguments_schema(name) for name in PLUGINS}


def profile_schema() -> dict[str, Any]:
    """Return the JSON schema of a profile. Arguments are described for the plug-ins of this project; those of other
    packages, whose names the template checks, can have any."""
    of_plugins = [
        {
            "if": {"required": ["name"], "properties": {"name": {"const": name}}},
            "then": {"properties": {"args": {"$ref": f"#/definitions/{name}Args"}}},
        }
        for name in PLUGINS
    ]
    plugin = {
        "name": {"type": "string"},
        "weight": {"type": ["integer", "null"], "minimum": 1, "maximum": LARGEST_WEIGHT},
        "args": {"type": ["object", "null"]},
    }
    closed = {"type": "object", "required": ["name"], "additionalProperties": False, "properties": plugin}
    properties = {
        "plugins": {"type": ["array", "null"], "minItems": 1, "items": {**closed, "allOf": of_plugins}},
        **{key: {"type": ["string", "null"]} for key in ("from", "profile")},
        **{key: {"type": ["boolean", "null"]} for key in ("precise_scores", "bind")},
        "reserve": {"enum": [*get_args(Reserve), None]},
    }
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def arguments_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of the arguments of a plug-in, in which null stands for an argument that is not set."""
    schema = schema_of(factory_of(name).arguments)
    own = resolved(schema, schema["$defs"])
    properties = {each: or_null(value) for each, value in own["properties"].items()}
    properties |= {
        "apiVersion": {},
        "kind": {"enum": [f"{name}Args", None]},
        **{each: {} for each in IGNORED_ARGUMENTS},
    }
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def resolved(schema: Any, named: dict[str, Any]) -> Any:
    """Return the schema with each reference replaced, and without texts and defaults."""
    if isinstance(schema, list):
        return [resolved(each, named) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return resolved(named[schema["$ref"].rpartition("/")[2]], named)
    texts = {"$defs", "title", "description", "default"}
    return {
        key: {name: resolved(each, named) for name, each in value.items()}
        if key == "properties"
        else resolved(value, named)
        for key, value in schema.items()
        if key not in texts
    }


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


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
