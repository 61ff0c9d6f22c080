"""The JSON Schema of a stack file, with the options of the plugins that are installed. For editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from optistack.host import Host
from optistack.stack.spec import StackSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def stack_schema(host: Host) -> dict[str, Any]:
    """The schema as a JSON object. A plugin that is not installed is not in it, as it would be refused."""
    plugins = host.plugins()
    models: list[type[BaseModel]] = [StackSpec, *(plugin.info.options for plugin in plugins)]
    references, schema = models_json_schema([(model, "validation") for model in models])
    definitions = schema["$defs"]
    stack = definitions.pop(_name(references[StackSpec, "validation"]))
    stack["properties"]["plugins"] = {
        "type": "object",
        "description": StackSpec.model_fields["plugins"].description,
        "additionalProperties": False,
        "properties": {
            plugin.name: {
                "description": plugin.info.summary,
                "anyOf": [references[plugin.info.options, "validation"], {"type": "null"}],
            }
            for plugin in plugins
        },
    }
    return {"$schema": DIALECT, **stack, "title": "optistack stack file", "$defs": definitions}


def _name(reference: dict[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]
