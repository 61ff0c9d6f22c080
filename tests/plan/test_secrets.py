"""Secrets of a launch are not shown where a plan is shown, and stay where it is started from."""

from __future__ import annotations

import pytest

from optistack.secrets import is_secret, json_shown, shown, words_shown


@pytest.mark.parametrize(
    "name", ["--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password", "HF_TOKEN", "OPENAI_API_KEY"]
)
def test_names_that_carry_a_secret(name: str) -> None:
    assert is_secret(name)
    assert shown(name, "s3cret") == "***"


@pytest.mark.parametrize("name", ["--tokenizer", "--max-num-batched-tokens", "--port", "--ssl-keyfile", "KEYS"])
def test_names_that_do_not(name: str) -> None:
    assert not is_secret(name)
    assert shown(name, "8000") == "8000"


def test_a_command_line_is_shown_without_them() -> None:
    words = ["--seed=3", "--api-key=s3cret", "--api-key", "s3cret", "more", "--hf-token", "--port", "80"]
    assert words_shown(words) == ["--seed=3", "--api-key=***", "--api-key", "***", "more", "--hf-token", "--port", "80"]


def test_a_plans_json_is_shown_without_them() -> None:
    plan = {
        "spec": {"engine_args": ["--api-key", "s3cret"]},
        "launches": [{"arguments": [{"flag": "--api-key", "value": "s3cret"}], "variables": []}],
        "front": {"variables": [{"name": "HF_TOKEN", "value": "s3cret"}]},
        "node": {"name": "cpu", "value": None},
    }
    told = json_shown(plan)
    assert "s3cret" not in str(told)
    assert told["node"] == plan["node"]
