"""What is wrong with a stack file, each problem as one sentence with its place and its fix."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from optistack.errors import InputError, nearest
from optistack.stack.document import Steps
from optistack.stack.spec import StackSpec

EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section with keys",
    "model_type": "a section with keys",
    "model_attributes_type": "a section with keys",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
}
"""pydantic's error types in a user's words; ``{}`` is filled from the error's own context."""

_SECTION_FIX = dict.fromkeys(
    ("dict_type", "model_type", "model_attributes_type"), "Give its keys and values below it, or nothing at all."
)


@dataclass(frozen=True)
class Problem:
    """``where`` is file and line, or the option of the command line."""

    where: str
    message: str
    fix: str = ""

    def sentence(self) -> str:
        return f"{self.where}: {self.message}"


class StackFileError(InputError):
    """A stack file with one or more problems. Shown as the first; ``--json`` prints them all."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first, *rest = problems
        more = f" ({len(rest)} more; --json lists them all.)" if rest else ""
        super().__init__(first.sentence() + more, fix=first.fix)
        self.problems = tuple(problems)


def problems_of(
    error: ValidationError, model: type[BaseModel], where: Callable[[Steps], str], *, above: Steps = (), whole: str = ""
) -> list[Problem]:
    """The problems that pydantic found in a ``model``.

    ``above``  path of the model's data inside the document
    ``whole``  what the model is, for messages: ``plugin dflash``; empty for the stack file itself
    """
    found = []
    for entry in _without_consequences(error.errors()):
        steps: Steps = entry["loc"]
        place = where((*above, *steps))
        name = ".".join(str(step) for step in steps)
        label = f"option {name} of {whole}" if whole else name
        if entry["type"] == "extra_forbidden":
            found.append(Problem(place, *_unknown_key(steps, model, whole)))
        elif entry["type"] == "missing":
            add = f"--set {above[-1]}.{name}=..." if place.startswith("-p ") else str(steps[-1])
            found.append(Problem(place, f"{label} is missing.", _how_to_mend(model, steps, add=add)))
        else:
            fix = _as_text(entry) or _how_to_mend(model, steps) or _SECTION_FIX.get(entry["type"], "")
            found.append(Problem(place, f"{label} {_must_be(entry)}.", fix))
    return found


def _as_text(entry: Any) -> str:
    """How to write text that YAML takes for a number or a truth: a version is the usual case."""
    given = entry["input"]
    if entry["type"] != "string_type" or not isinstance(given, (bool, int, float)):
        return ""
    return f'Put it in quotes as it is meant: "{_shown(given)}".'


def _without_consequences(entries: Sequence[Any]) -> list[Any]:
    """``entries`` without the keys that are missing because they are there, misspelt: the misspelling says it."""
    written = {entry["loc"] for entry in entries if entry["type"] == "extra_forbidden"}

    def misspelt(steps: Steps) -> bool:
        here = [str(other[-1]) for other in written if other[:-1] == steps[:-1]]
        return bool(difflib.get_close_matches(str(steps[-1]), here, n=1, cutoff=0.7))

    return [entry for entry in entries if entry["type"] != "missing" or not misspelt(entry["loc"])]


def _must_be(entry: Any) -> str:
    expected = EXPECTED.get(entry["type"])
    if expected is None:
        # A validator of the model's own: its text is already a sentence for the user.
        text = str(entry["msg"]).removeprefix("Value error, ").rstrip(".")
        return f"is not right: {text}"
    return f"must be {expected.format(**entry.get('ctx', {}))}, not {_shown(entry['input'])}"


def _shown(given: Any) -> str:
    """``given`` as one would write it in YAML, cut to a sentence's size."""
    if given is None or isinstance(given, bool):
        return {None: "nothing", True: "true", False: "false"}[given]
    text = repr(given)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(steps: Steps, model: type[BaseModel], whole: str) -> tuple[str, str]:
    *above, key = steps
    section = _section(model, tuple(above))
    known = list(section.model_fields) if section is not None else []
    if whole:
        inside = f" in {'.'.join(map(str, above))}" if above else ""
        return f"{whole} has no option {str(key)!r}{inside}.", nearest(str(key), known) or "It has no options."
    name = ".".join(str(step) for step in above) or "a stack file"
    home = _home_of(str(key), model)
    hint = f"It belongs to {home}." if home else nearest(str(key), known)
    return f"{name} has no key {str(key)!r}.", hint


def _section(model: type[BaseModel], steps: Steps) -> type[BaseModel] | None:
    """The model of the section at ``steps`` below ``model``; ``None`` where the path leaves typed ground."""
    for step in steps:
        info = model.model_fields.get(str(step))
        kinds = (info.annotation, *get_args(info.annotation)) if info is not None else ()  # X, or X | None
        kind = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if kind is None:
            return None
        model = kind
    return model


def _home_of(key: str, model: type[BaseModel]) -> str:
    """The section that a misplaced ``key`` of the stack file belongs to."""
    if model is not StackSpec:
        return ""
    for name in model.model_fields:
        section = _section(model, (name,))
        if section is not None and key in section.model_fields:
            return name
    return ""


def _how_to_mend(model: type[BaseModel], steps: Steps, *, add: str = "") -> str:
    """What to do about the field at ``steps``, and what it means. ``add`` is how to give one that is missing."""
    section = _section(model, steps[:-1])
    info = section.model_fields.get(str(steps[-1])) if section is not None and steps else None
    if info is None or not info.description:
        return f"Add {add}." if add else ""
    do = f"Add {add}" if add else "Change it" if info.is_required() else "Change it or leave it out"
    return f"{do}; it means: {info.description}"
