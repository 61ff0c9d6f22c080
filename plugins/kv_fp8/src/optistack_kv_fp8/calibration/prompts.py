"""What the model is asked, so that it writes prose and code of its own."""

from __future__ import annotations

from pathlib import Path

from optistack.errors import InputError
from optistack.files import numbered_lines, read_json_line

GENERAL = (
    "Explain to a new colleague why a cache that is too large can make a service slower.",
    "What should I pack for three days of walking in the mountains in October?",
    "Summarise the causes of the First World War in five sentences.",
    "Write a short letter to a landlord about a heater that does not work.",
    "A train leaves at 9:40 and arrives at 13:05 after two stops of six minutes. How long does it move?",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    "列出三种保存新鲜香草的方法。",
    "Describe how bread rises, for a child of eight.",
)
CODE = (
    "Write a Python function that merges overlapping intervals, with tests.",
    "Write a C function that reverses a singly linked list in place.",
    "Write a SQL query for the three best customers of each month of last year.",
    "Write a Rust struct for a ring buffer of fixed capacity, with push, pop and iteration.",
    "Return as JSON an object with name, version and a list of four dependencies of a made-up package.",
    "Find the bug: `def mean(xs): return sum(xs) / len(xs) if xs else None + 0`",
    "Write a shell script that deletes files older than thirty days under a folder, and asks first.",
    "Write a TypeScript type that makes every field of another type optional, deeply.",
)

_FORM = 'Write the line as {"prompt": "..."}; one that does not begin with { is a prompt itself.'


def read_prompts(path: Path | None) -> list[str]:
    """The built-in prompts, or those of a file: JSON lines with ``prompt``, or a prompt a line. InputError if none."""
    if path is None:
        return [prompt for pair in zip(GENERAL, CODE, strict=True) for prompt in pair]
    prompts = [_prompt(path, number, line) for number, line in numbered_lines(path, fix="Give a text file of prompts.")]
    if not prompts:
        raise InputError(f"{path} has no prompts.", fix="Give one a line, or JSON lines with a field `prompt`.")
    return prompts


def _prompt(path: Path, number: int, line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        prompt = read_json_line(line).get("prompt")
    except ValueError as error:
        raise InputError(f"Line {number} of {path} is no JSON: {error}.", fix=_FORM) from error
    if not isinstance(prompt, str) or not prompt:
        raise InputError(f"Line {number} of {path} has no text in `prompt`.", fix=_FORM)
    return prompt
