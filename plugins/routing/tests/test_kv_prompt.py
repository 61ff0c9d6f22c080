"""From bodies to tokens, with a small tokenizer and a template as checkpoints have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from optistack.errors import InputError
from optistack_routing.kv_index.index import chain
from optistack_routing.kv_index.prompt import PromptReader, Text
from optistack_routing.kv_index.session_tokens import SessionTokens

TEMPLATE = """{%- if tools %}<|im_start|>tools {{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}
    {% if message.role == 'nobody' %}{{ raise_exception('no such role') }}{% endif %}
<|im_start|>{{ message.role }}
{{ message.content }}{% for c in message.tool_calls or [] %}[{{ c.function.arguments.path }}]{% endfor %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>{% endif %}{% endif %}"""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the user said that the assistant has read the file and the rest"] * 5, trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in ("<|im_start|>", "<|im_end|>", "<pad>")])
    tokenizer.add_tokens([AddedToken("<think>", rstrip=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def reader(checkpoint: Path) -> PromptReader:
    return PromptReader(checkpoint)


def chat(*messages: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def text(reader: PromptReader, body: bytes) -> str:
    prompt = reader.read(body)
    assert isinstance(prompt, Text) and not prompt.special
    return prompt.text


def test_messages_are_rendered_with_the_checkpoints_template(reader: PromptReader) -> None:
    user = {"role": "user", "content": "hi"}
    assert text(reader, chat(user)) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text(reader, chat(user, add_generation_prompt=False)) == "<|im_start|>user\nhi<|im_end|>\n"
    assert text(reader, chat(user, chat_template_kwargs={"enable_thinking": True})).endswith("<think>")
    assert text(reader, chat(user, tools=[{"é": 1}])).startswith('<|im_start|>tools [{"é": 1}]<|im_end|>')


def test_text_parts_are_one_text_and_arguments_of_calls_are_objects(reader: PromptReader) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    call = {"function": {"name": "read", "arguments": '{"path": "x.py"}'}}
    said = text(reader, chat(parts, {"role": "assistant", "content": None, "tool_calls": [call]}))
    assert "a\nb<|im_end|>" in said and "[x.py]" in said


def test_a_completion_is_its_text_or_its_ids(reader: PromptReader) -> None:
    assert reader.read(b'{"prompt": "hi"}') == Text("hi", special=True)
    assert reader.read(b'{"prompt": [1, 2]}') == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"prompt": ["a", "b"]}',
        b'{"messages": 5}',
        b'{"messages": ["hi"]}',
        chat({"role": "nobody", "content": "hi"}),
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
        chat({"role": "user", "content": "hi"}, chat_template="{{ messages }}"),
    ],
)
def test_what_cannot_be_read_here_has_no_prediction(reader: PromptReader, body: bytes) -> None:
    assert reader.read(body) is None


def test_a_template_cannot_reach_out_of_its_sandbox(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    assert PromptReader(tmp_path).read(chat({"role": "user", "content": "hi"})) is None


def test_a_checkpoint_with_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        PromptReader(tmp_path)


def test_a_prompt_is_cut_only_before_tokens_that_stand_alone(reader: PromptReader) -> None:
    assert set(reader.marks) == {"<|im_start|>", "<|im_end|>"}


words = st.text(st.sampled_from("the user <|im_start|>é\n<think>"), max_size=30)
turns = st.lists(st.tuples(st.sampled_from(["grow", "grow", "edit", "cut"]), words), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns, st.integers(1, 5))
def test_tokens_in_parts_are_the_tokens_of_the_whole(
    reader: PromptReader, steps: list[tuple[str, str]], page: int
) -> None:
    sessions = SessionTokens(reader.tokenizer, page, reader.marks)
    messages: list[dict[str, str]] = []
    for what, content in steps:
        if what == "edit" and messages:
            messages[len(content) % len(messages)] = {"role": "user", "content": content}
        elif what == "cut" and messages:
            del messages[len(content) % len(messages) :]
        messages.append({"role": "user", "content": content})
        prompt = reader.read(chat(*messages))
        assert isinstance(prompt, Text)
        ids = reader.tokenizer.encode(prompt.text, add_special_tokens=False).ids
        assert sessions.of(prompt, "s") == sessions.of(prompt) == sessions.of(ids)


def test_the_next_turn_costs_what_is_new(reader: PromptReader) -> None:
    sessions = SessionTokens(reader.tokenizer, 16, reader.marks)
    messages = [{"role": "user", "content": "the file " * 5000}]
    sessions.of(reader.read(chat(*messages)), "s")
    before = sessions.tokenized_characters
    messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and the rest"}]
    sessions.of(reader.read(chat(*messages)), "s")
    assert sessions.tokenized_characters - before < 200


def test_sessions_are_bounded_by_their_bytes(reader: PromptReader) -> None:
    sessions = SessionTokens(reader.tokenizer, 16, reader.marks, max_bytes=10_000)
    for number in range(50):
        sessions.of(reader.read(chat({"role": "user", "content": "the file " * 100}, {"role": "user"})), str(number))
        assert sessions._bytes == sum(known.size_bytes for known in sessions._sessions.values()) <= 10_000
    assert 0 < len(sessions._sessions) < 50


def test_keys_are_those_of_the_index(reader: PromptReader) -> None:
    from array import array

    assert SessionTokens(reader.tokenizer, 2).of([1, 2, 3, 4, 5]).keys == chain(array("I", [1, 2, 3, 4, 5]), 2)
