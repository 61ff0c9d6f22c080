"""Requests do not disturb each other."""

from __future__ import annotations

from typing import Any

from optistack_conformance.client import CHAT, COMPLETIONS, Client, reasoning_of
from optistack_conformance.evals.copying import items
from optistack_conformance.selection import Selection

LEAK_TASKS = 16


def test_requests_do_not_leak_into_each_other(candidate: Client, selection: Selection) -> None:
    """Copying tasks, many at once, whole and streamed: no answer is the one that another task gets alone.

    160 requests find one crossed answer in fifty with 96%.
    """
    tasks = items(LEAK_TASKS)

    def ask(number: int, *, stream: bool = False) -> tuple[str, int]:
        prompt, chat = tasks[number % LEAK_TASKS].prompt, number // LEAK_TASKS % 2 == 1
        path = CHAT if chat else COMPLETIONS
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        fields |= {"max_tokens": 8, "temperature": 0.0}
        if stream:
            found = candidate.stream(path, **fields, stream_options={"include_usage": True})
            return found.text + found.reasoning, int((found.usage or {}).get("prompt_tokens") or 0)
        body = candidate.ask(path, **fields)
        choice = body["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        return (message.get("content") or "") + reasoning_of(message), body["usage"]["prompt_tokens"]

    alone = [ask(number) for number in range(2 * LEAK_TASKS)]
    texts = [text for text, _ in alone]
    words = {word for task in tasks for word in task.reference.split()}
    numbers = range(selection.sizes.leak_requests)
    together = candidate.parallel(lambda n: ask(n, stream=n % 2 == 1), numbers, selection.concurrency)
    for number, (text, tokens) in enumerate(together):
        mine, counted = alone[number % len(alone)]
        if tokens:
            assert tokens == counted, f"task {number}: {tokens} prompt tokens in a batch, {counted} alone"
        # A text may differ from its own by rounding, and be what another prompt gets if it says nothing of either:
        # a weak model's "The original text was:". Words of the other's line cannot come from there.
        foreign = words - set(tasks[number % LEAK_TASKS].prompt.split())
        crossed = text != mine and text in texts and foreign & set(text.split())
        assert not crossed, f"request {number} got the answer of another: {text!r}, not {mine!r}"


def test_ids_are_unique(candidate: Client, selection: Selection) -> None:
    """Every answer has an id of its own."""
    bodies = candidate.parallel(
        lambda number: candidate.ask(COMPLETIONS, prompt=f"Number {number}", max_tokens=1),
        range(selection.concurrency),
        selection.concurrency,
    )
    assert len({body["id"] for body in bodies}) == len(bodies)
