"""``LaunchBuilder``: collects the parts of a launch and sees to it that every flag has exactly one owner."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from optistack.errors import PlanRefusedError
from optistack.launch import LaunchArgument, LaunchFile, LaunchVariable
from optistack.settings import EngineArgument, Value
from optistack.versions import within

USER = "stack"
"""The source of what the stack file says itself."""


class LaunchBuilder:
    """Flags, variables and files of one launch, in the order in which they are added.

    ``aliases`` maps other spellings of the engine's flags to the one that the adapter uses (``--tp`` to ``--tp-size``).
    """

    def __init__(self, backend: str, *, aliases: Mapping[str, str] | None = None) -> None:
        self.backend = backend
        self._aliases = dict(aliases or {})
        self._arguments: dict[str, LaunchArgument] = {}
        self._variables: dict[str, LaunchVariable] = {}
        self._user: list[LaunchArgument] = []
        self.files: list[LaunchFile] = []

    @property
    def arguments(self) -> tuple[LaunchArgument, ...]:
        return (*self._arguments.values(), *self._user)

    @property
    def variables(self) -> tuple[LaunchVariable, ...]:
        return tuple(self._variables.values())

    def flag(
        self,
        flag: str,
        value: object = None,
        *,
        source: str,
        why: str = "",
        reference: str = "",
        setting: str = "",
    ) -> None:
        """Add ``flag``, a switch when ``value`` is ``None``. Raises PlanRefusedError when another source has set it."""
        word = None if value is None else str(value)
        _claim(
            self._arguments,
            self._aliases.get(flag, flag),
            LaunchArgument(flag=flag, value=word, source=source, why=why, reference=reference, setting=setting),
        )

    def variable(
        self, name: str, value: object, *, source: str, why: str = "", reference: str = "", setting: str = ""
    ) -> None:
        """Set an environment variable. Raises PlanRefusedError when another source has set it."""
        _claim(
            self._variables,
            name,
            LaunchVariable(name=name, value=str(value), source=source, why=why, reference=reference, setting=setting),
        )

    def file(self, name: str, content: str, **part: str) -> None:
        """Add a file; ``part`` is ``source``, ``why``, ``reference``, ``setting``."""
        self.files.append(LaunchFile(name=name, content=content, **part))

    def carry(
        self, flag: str, setting: str, value: Value[Any], word: Callable[[Any], object] = str, *, note: str = ""
    ) -> None:
        """Add ``flag`` for a resolved setting, signed by whoever wished for it; nothing when nobody did.

        ``word`` turns the value into the engine's word; ``note`` says so where the two differ.
        """
        if value.is_set:
            part = credit(value)
            part["why"] = "; ".join(filter(None, (part["why"], note)))
            self.flag(flag, word(value.value), setting=setting, **part)

    def switch(self, flag: str, setting: str, value: Value[bool]) -> None:
        """Add the switch ``flag`` when the resolved setting is true."""
        if value.value:
            self.flag(flag, setting=setting, **credit(value))

    def plugin_arguments(self, arguments: Iterable[EngineArgument], version: str) -> None:
        """Add the plugins' own arguments for this backend and engine version."""
        for argument in arguments:
            if argument.backend != self.backend or not within(version, argument.versions):
                continue
            part = {"source": argument.source, "why": argument.why, "reference": argument.reference}
            if argument.env:
                self.variable(argument.name, argument.value or "", **part)
            else:
                self.flag(argument.name, argument.value, **part)

    def user_arguments(self, words: Iterable[str]) -> None:
        """Add the stack file's ``engine_args`` as they are, last.

        A second and further value of one flag becomes a part of its own, so the command line has the words in order.
        Raises PlanRefusedError when one of them is a flag that the plan sets, naming who set it, and for words that
        belong to no flag.
        """
        part = {"source": USER, "why": "engine_args of the stack file"}
        for word in words:
            last = self._user[-1] if self._user else None
            if not re.match(r"-+[A-Za-z]", word):
                if last is None or word == "--":
                    # Left in, it would become a further value of whatever flag stands before it.
                    raise PlanRefusedError(
                        f"{word!r} is no flag.", fix="Write engine_args word by word: --engine-arg=--seed=3."
                    )
                if last.value is None and last.flag.startswith("-"):
                    self._user[-1] = last.model_copy(update={"value": word})
                else:
                    self._user.append(LaunchArgument(flag=word, **part))
                continue
            flag, equals, value = word.partition("=")
            owner = self._arguments.get(self._aliases.get(flag, flag))
            if owner is not None:
                raise PlanRefusedError(
                    _by_hand(flag, owner), fix="Take it out of engine_args and change the setting instead."
                )
            self._user.append(LaunchArgument(flag=flag, value=value if equals else None, **part))


def credit(value: Value[Any]) -> dict[str, str]:
    """``source``, ``why`` and ``reference`` of the opinions that decided ``value``."""
    firm = [origin for origin in value.wishes if not origin.said.startswith("default ")]
    origins = firm if firm and not value.default else value.wishes
    parts = {
        "source": [origin.source for origin in origins],
        "why": [origin.why for origin in origins],
        "reference": [origin.reference for origin in origins],
    }
    return {name: "; ".join(dict.fromkeys(filter(None, texts))) for name, texts in parts.items()}


def _claim(owners: dict[str, Any], key: str, part: LaunchArgument | LaunchVariable) -> None:
    owner = owners.setdefault(key, part)
    if owner is part:
        return
    if owner.value == part.value:  # agreed: both are named
        sources = "; ".join(dict.fromkeys((owner.source, part.source)))
        owners[key] = owner.model_copy(update={"source": sources})
        return
    raise PlanRefusedError(
        f"{key} has two owners: {owner.source} sets {_shown(owner)}, {part.source} sets {_shown(part)}.",
        fix="Change the option of one of them, or leave one out.",
    )


def _by_hand(flag: str, owner: LaunchArgument) -> str:
    """That ``owner`` has set what the user's ``flag`` sets, in the same spelling, another one, or to the contrary."""
    who = "the stack" if owner.source == USER else owner.source
    value = "on" if owner.value is None else repr(owner.value)
    if flag == owner.flag:
        return f"{flag} is given by hand and set by {who} ({value})."
    if re.match("--no[-_]", flag) or owner.flag.startswith("--no-"):
        return f"{flag} is given by hand against {owner.flag}, which {who} sets ({value})."
    return f"{flag} is given by hand, and {who} sets {owner.flag} ({value})."


def _shown(part: LaunchArgument | LaunchVariable) -> str:
    return "it on" if part.value is None else repr(part.value)
