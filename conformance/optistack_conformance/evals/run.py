"""Put the items to a server and check the answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optistack_conformance.answers import read_from
from optistack_conformance.client import COMPLETIONS, Client
from optistack_conformance.evals.items import Item


@dataclass(frozen=True)
class Answer:
    """What came back for an item. ``prompt_tokens`` as the server counts them."""

    item: Item
    text: str
    passed: bool
    prompt_tokens: int


def run_items(client: Client, items: Sequence[Item], *, concurrency: int) -> list[Answer]:
    """Greedy answers to ``items``, in their order. Raises CheckFailedError when the server refuses one."""

    def ask(item: Item) -> tuple[str, int]:
        body = client.ask(
            COMPLETIONS, prompt=item.prompt, max_tokens=item.max_tokens, temperature=0.0, stop=list(item.stop)
        )
        with read_from(client.url):
            return str(body["choices"][0]["text"]), int((body.get("usage") or {}).get("prompt_tokens") or 0)

    answers = client.parallel(ask, items, concurrency)
    # Code is run one by one, after the server is done: two cores are better not shared with it.
    return [Answer(item, text, item.check(text), tokens) for item, (text, tokens) in zip(items, answers, strict=True)]


def passed(answers: Iterable[Answer]) -> dict[str, bool]:
    return {answer.item.id: answer.passed for answer in answers}
