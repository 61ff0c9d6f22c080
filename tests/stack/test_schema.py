"""The schema that editors use says what the loader accepts."""

from __future__ import annotations

import json

from optistack.host import Host
from optistack.stack.schema import stack_schema
from optistack.stack.spec import StackSpec


def test_every_key_and_every_option_is_in_it_with_a_description(host: Host) -> None:
    schema = stack_schema(host)
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == set(StackSpec.model_fields)
    assert schema["additionalProperties"] is False
    serving = schema["$defs"]["ServingSection"]["properties"]
    assert all(field["description"] for field in serving.values())


def test_plugins_are_those_installed_each_with_its_options(host: Host) -> None:
    schema = stack_schema(host)
    plugins = schema["properties"]["plugins"]
    assert set(plugins["properties"]) == {"drafter", "kv-eight"}
    assert plugins["additionalProperties"] is False
    options = plugins["properties"]["kv-eight"]["anyOf"][0]["$ref"]
    definition = schema["$defs"][options.rpartition("/")[2]]
    assert definition["properties"]["dtype"]["enum"] == ["fp8_e4m3", "fp8_e5m2"]


def test_references_in_it_lead_somewhere(host: Host) -> None:
    schema = stack_schema(host)

    def references(part: object) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if "$ref" in part else []
            return own + [reference for value in part.values() for reference in references(value)]
        return [reference for item in part for reference in references(item)] if isinstance(part, list) else []

    assert {reference.rpartition("/")[2] for reference in references(schema)} <= set(schema["$defs"])
