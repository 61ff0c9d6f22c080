"""A stack file is read as written, and whatever is wrong with it is one sentence with file, line and fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.host import Host
from optistack.stack.document import parse_document
from optistack.stack.loader import load_stack, validate
from optistack.stack.overrides import Overrides
from optistack.stack.problems import StackFileError
from optistack.stack.spec import StackSpec

Write = Callable[[str], Path]

GOOD = """\
name: demo
model:
  checkpoint: org/name
workload: {input_tokens: 100_000, concurrency: 5}
plugins:
  kv-eight:
  drafter:
    checkpoint: ./draft
    num_draft_tokens: 7
engine_args: [--seed, "1"]
"""


def test_a_good_file_is_read_as_written(write: Write, host: Host) -> None:
    spec = load_stack(write(GOOD), host)
    assert spec.model.checkpoint == "org/name"
    assert spec.workload.input_tokens == 100_000
    assert spec.plugins["kv-eight"] == {}
    assert spec.plugins["drafter"]["num_draft_tokens"] == 7
    assert spec.engine_args == ("--seed", "1")


@pytest.mark.parametrize(
    ("text", "line", "message", "fix"),
    [
        ("model: {checkpoint: a/b}\nmodle: 1\n", 2, "has no key 'modle'", "Did you mean 'model'?"),
        ("model:\n  checkpoint: a/b\n  revison: x\n", 3, "model has no key 'revison'", "Did you mean 'revision'?"),
        ("model: {checkpoint: a/b}\ncontext_tokens: 1\n", 2, "no key 'context_tokens'", "It belongs to serving."),
        ("model: {checkpoint: a/b}\nparallel:\n  tensor: four\n", 3, "must be a whole number, not 'four'", ""),
        ("model: {checkpoint: a/b}\nparallel:\n  tensor: yes\n", 3, "must be a whole number, not true", ""),
        ("model: {checkpoint: a/b}\nparallel:\n  tensor: 0\n", 3, "must be greater than 0, not 0", ""),
        ("model: {checkpoint: a/b}\nserving: 3\n", 2, "serving must be a section with keys, not 3", ""),
        (
            "model: {checkpoint: a/b}\nengine: {version: 0.32}\n",
            2,
            "must be text, not 0.32",
            'in quotes as it is meant: "0.32"',
        ),
        ("model: {checkpoint: a/b}\nversion: 2\n", 2, "version must be 1, not 2", ""),
        ("name: x\nmodel:\n  config: y\n", 2, "model.checkpoint is missing", "A folder"),
        ("name: x\n", 1, "model is missing", ""),
        ("model: {checkpoint: a/b}\nname: Big Name\n", 2, "name must be text that matches", ""),
        ("model: {checkpoint: a/b}\nplugins:\n  kv-eigth:\n", 3, "No plugin is called 'kv-eigth'", "'kv-eight'"),
        ("model: {checkpoint: a/b}\nplugins:\n  kv-eight: {dtpye: x}\n", 3, "has no option 'dtpye'", "'dtype'"),
        ("model: {checkpoint: a/b}\nplugins:\n  kv-eight:\n    dtype: fp4\n", 4, "option dtype of plugin kv-eight", ""),
        (
            "model: {checkpoint: a/b}\nplugins:\n  drafter: {checkpoint: x/y, num_draft_tokens: true}\n",
            3,
            "option num_draft_tokens of plugin drafter must be a whole number, not true",
            "",
        ),
        (
            "model: {checkpoint: a/b}\nplugins:\n  drafter:\n    checkpoint: x/y\n    num_draft_tokens: '7'\n",
            5,
            "must be a whole number, not '7'",
            "",
        ),
        ("model: {checkpoint: a/b}\nplugins:\n  drafter:\n", 3, "option checkpoint of plugin drafter is missing", ""),
        ("model: {checkpoint: a/b}\nplugins: [kv-eight]\n", 2, "plugins is a list", "`kv-eight:`"),
        ("model: {checkpoint: a/b}\nplugins:\n  kv-eight: fast\n", 3, "must be a section with keys", "Give its keys"),
        ("model: {checkpoint: a/b}\nmodel: {checkpoint: c/d}\n", 2, "'model' is already set in line 1", "Keep one"),
        ("model:\n  checkpoint: a/b\n  1: 2\n", 3, "1 cannot be a key", ""),
        ("model: {checkpoint: !python/name:os.system x}\n", 1, "could not determine a constructor", ""),
        ("model: &m\n  checkpoint: *m\n", 1, "contains itself", "anchor"),
        ("model:\n  checkpoint: a/b\n name: x\n", 3, "is not valid YAML", "indentation"),
        ("model: {checkpoint: 'a/b\n", 2, "is not valid YAML", ""),
        ("- model\n", 1, "a stack file is a mapping", ""),
        ("model: {checkpoint: a/b}\n---\nmodel: {checkpoint: c/d}\n", 2, "is not valid YAML", ""),
    ],
)
def test_each_mistake_is_one_sentence_with_file_and_line(
    write: Write, host: Host, text: str, line: int, message: str, fix: str
) -> None:
    path = write(text)
    with pytest.raises(InputError) as caught:
        load_stack(path, host)
    assert caught.value.message.startswith(f"{path}:{line}"), caught.value.message
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"# nothing\n", "is empty"), (b"\xff\xfe\x00", "UTF-8")]
)
def test_a_file_that_is_no_yaml_at_all(tmp_path: Path, host: Host, content: bytes, message: str) -> None:
    path = tmp_path / "optistack.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_stack(path, host)


def test_a_missing_file_and_a_folder(tmp_path: Path, host: Host) -> None:
    with pytest.raises(InputError, match="There is no stack file") as caught:
        load_stack(tmp_path / "no.yaml", host)
    assert "--stack FILE" in caught.value.fix
    with pytest.raises(InputError, match="cannot be read"):
        load_stack(tmp_path, host)


def test_a_misspelt_key_is_told_and_not_that_the_right_one_is_missing(write: Write, host: Host) -> None:
    with pytest.raises(StackFileError) as caught:
        load_stack(write("model: {checkpont: a/b}\nplugins:\n  drafter: {checkpoints: x/y}\n"), host)
    assert [problem.message for problem in caught.value.problems] == [
        "model has no key 'checkpont'.",
        "plugin drafter has no option 'checkpoints'.",
    ]


def test_all_problems_are_there_in_order_of_their_lines(write: Write, host: Host) -> None:
    text = "model: {checkpoint: a/b}\nplugins:\n  kv-eight: {x: 1}\nparallel: {tensor: a, expert: b}\n"
    with pytest.raises(StackFileError) as caught:
        load_stack(write(text), host)
    assert [problem.where.rpartition(":")[2] for problem in caught.value.problems] == ["3", "4", "4"]
    assert "(2 more; --json lists them all.)" in caught.value.message


def test_a_plugin_that_did_not_load_says_why(write: Write, host: Host) -> None:
    from optistack.host import LoadFailure

    host.failures.append(LoadFailure("broken", "optistack-broken 1", "ImportError: no module named x"))
    with pytest.raises(InputError, match=r"yaml:3: Plugin broken is installed but did not load: ImportError"):
        load_stack(write("model: {checkpoint: a/b}\nplugins:\n  broken:\n"), host)


def test_an_empty_section_counts_as_absent(write: Write, host: Host) -> None:
    spec = load_stack(write("model: {checkpoint: a/b}\nserving:\nplugins:\n"), host)
    assert spec.serving == StackSpec.model_validate({"model": {"checkpoint": "a/b"}}).serving


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-5, 300_000) | st.floats(allow_nan=False) | words
keys = st.sampled_from([*StackSpec.model_fields, "checkpoint", "tensor", "kv-eight", "drafter"]) | words
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))


@given(st.dictionaries(keys, trees, max_size=6))
def test_whatever_yaml_says_gives_a_stack_or_sentences_with_a_line_of_the_file(data: dict[str, object]) -> None:
    host = Host()
    text = yaml.safe_dump(data, allow_unicode=True)
    lines = len(text.splitlines())
    try:
        validate(parse_document(text, "f.yaml"), host)
    except StackFileError as error:
        for problem in error.problems:
            match = re.fullmatch(r"f\.yaml:(\d+)", problem.where)
            assert match is not None
            assert 1 <= int(match[1]) <= lines
    except InputError as error:
        assert error.message.startswith("f.yaml")


@given(words)
def test_any_text_is_a_document_or_an_input_error(text: str) -> None:
    try:
        document = parse_document(text, "f.yaml")
    except InputError as error:
        assert error.message.startswith("f.yaml")
    else:
        assert isinstance(document.data, dict)


def test_several_missing_plugins_are_told_together(write: Write, host: Host) -> None:
    path = write("model: {checkpoint: a/b}\nplugins:\n  one:\n  two:\n")
    with pytest.raises(InputError, match=r":3: No plugins are called 'one', 'two'\.") as caught:
        load_stack(path, host)
    assert "Installed: drafter, kv-eight." in caught.value.fix
    with pytest.raises(InputError, match=r"No plugins are called 'three', 'four'\."):
        load_stack(write("model: {checkpoint: a/b}\n"), host, Overrides(plugins=("three", "four")))


def test_aliases_of_aliases_are_not_written_out_without_end(write: Write, host: Host) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(InputError, match="more than 20,000 values once its aliases are written out"):
        load_stack(write("\n".join(lines)), host)


@pytest.mark.parametrize(
    "key",
    [
        "engine.image",
        "engine.version",
        "engine.python",
        "model.served_name",
        "model.checkpoint",
        "model.revision",
        "serving.attention_backend",
        "serving.host",
    ],
)
@pytest.mark.parametrize("value", ["''", "'  '"])
def test_an_empty_text_is_refused_where_it_stands(write: Write, host: Host, key: str, value: str) -> None:
    section, name = key.split(".")
    model = "model:\n  checkpoint: a/b\n" if section != "model" else "model:\n"
    other = "" if key == "model.checkpoint" else "  checkpoint: a/b\n" if section == "model" else ""
    text = f"{model}{other}" if section == "model" else f"{model}{section}:\n"
    path = write(f"{text}  {name}: {value}\n")
    with pytest.raises(StackFileError) as caught:
        load_stack(path, host)
    assert caught.value.message.startswith(f"{path}:{text.count(chr(10)) + 1}: {key} is not right: ")


@pytest.mark.parametrize("name", ["not a host", "-x", "a..b", "[::1]", "1.2.3.400", "x" * 64, "http://here"])
def test_a_host_that_is_none_is_refused(write: Write, host: Host, name: str) -> None:
    path = write(f"model: {{checkpoint: a/b}}\nserving:\n  host: '{name}'\n")
    with pytest.raises(StackFileError, match="serving.host is not right: .* is neither an address nor the name"):
        load_stack(path, host)


@pytest.mark.parametrize("name", ["localhost", "0.0.0.0", "::", "fe80::1%eth0", "node-7.cluster.local.", "my_host"])
def test_addresses_and_names_are_hosts(write: Write, host: Host, name: str) -> None:
    path = write(f"model: {{checkpoint: a/b}}\nserving:\n  host: '{name}'\n")
    assert load_stack(path, host).serving.host == name
