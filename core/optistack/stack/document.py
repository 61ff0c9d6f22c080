"""A stack file as plain data that remembers where each part of it was written.

The file is composed into YAML nodes and read from those, because only nodes carry line numbers and only they show a key
that is written twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from optistack.errors import READ_PERMISSION, InputError

DEFAULT_FILE = "optistack.yaml"

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MOST_VALUES = 20_000
"""Values in a document, aliases written out: a few lines of aliases of aliases make billions."""

MOST_CHARACTERS = 4_000_000
"""Of a file: no stack has as many, and a device or a checkpoint given by mistake would fill the memory."""

Steps = tuple[str | int, ...]
"""Where something is inside a document: keys and list positions from the top."""


@dataclass
class Document:
    """``data`` is the file's content; ``said`` tells what the command line put into it, by path.

    ``name``  the file as the user wrote it; it opens every error
    """

    name: str
    data: dict[str, Any]
    root: yaml.Node | None = field(default=None, repr=False)
    said: dict[Steps, str] = field(default_factory=dict)

    def where(self, path: Steps) -> str:
        """``optistack.yaml:12``, or the option of the command line, for the deepest part of ``path`` that exists."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.said:
                return self.said[path[:length]]
        return f"{self.name}:{_line(self.root, path)}"

    def put(self, path: tuple[str, ...], value: Any, said: str) -> None:
        """Set ``value`` at ``path``, making sections on the way. Raises InputError where the way is no section."""
        section = self.data
        for depth, key in enumerate(path[:-1], start=1):
            if section.get(key) is None:
                section[key] = {}
                self.said.setdefault(path[:depth], said)
            section = section[key]
            if not isinstance(section, dict):
                raise InputError(f"{said}: {'.'.join(path[:depth])} has no keys to set.")
        section[path[-1]] = value
        self.said[path] = said


def read_document(path: Path) -> Document:
    """The stack file at ``path``. Raises InputError, with file and line, when it is no single YAML mapping."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except FileNotFoundError:
        raise InputError(
            f"There is no stack file {path}.",
            fix=f"Write one ({DEFAULT_FILE} is the default), or name it with --stack FILE.",
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8.", fix="A stack file is YAML.") from error
    except PermissionError as error:
        raise InputError(f"{path} may not be read: {error.strerror}.", fix=READ_PERMISSION) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", fix="Give a YAML file.") from error
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{path} has more than {MOST_CHARACTERS:,} characters.", fix="Give a stack file.")
    return parse_document(text, str(path))


def parse_document(text: str, name: str, *, kind: str = "stack file") -> Document:
    """Like :func:`read_document` for ``text`` that is already read; ``name`` is what errors call it.

    ``kind`` is what it should be, where that is no stack file.
    """
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{name}{line} is not valid YAML: {reason}.", fix="Check indentation and quotes.") from error
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name} is not valid YAML: {reason}.", fix=f"A {kind} is UTF-8 text.") from error
    if root is None:
        raise InputError(f"{name} is empty.", fix="A stack file needs at least model.checkpoint.")
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{name}:{_line(root, ())}: a {kind} is a mapping.", fix="Write `key: value` on each line.")
    return Document(name, _Reader(name).mapping(root, ()), root)


class _Reader:
    """Turns nodes into data, refusing what YAML lets through and a stack file cannot mean."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._scalars = yaml.constructor.SafeConstructor()
        self._values = 0

    def mapping(self, node: yaml.MappingNode, above: tuple[yaml.Node, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.tag.endswith(":str"):
                written = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                raise InputError(f"{self._name}:{line}: {written} cannot be a key here.", fix="Keys are words.")
            key = key_node.value
            if key in result:
                raise InputError(
                    f"{self._name}:{line}: the key {key!r} is already set in line {first[key]}.",
                    fix="Keep one of them.",
                )
            first[key] = line
            result[key] = self.value(value_node, (*above, node))
        return result

    def value(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> Any:
        if any(node is parent for parent in above):
            raise InputError(f"{self._name}:{_line(node, ())}: this part contains itself.", fix="Remove the anchor.")
        self._values += 1
        if self._values > MOST_VALUES:
            raise InputError(
                f"{self._name} has more than {MOST_VALUES:,} values once its aliases are written out.",
                fix="Write the parts themselves instead of aliases of aliases.",
            )
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, above)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*above, node)) for item in node.value]
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            raise InputError(f"{self._name}:{_line(node, ())}: {reason}.", fix="Quote it if it is text.") from error


def _line(node: yaml.Node | None, path: Steps) -> int:
    """The line (from 1) of the deepest part of ``path`` below ``node``: of its key, where it has one."""
    line = node.start_mark.line if node is not None else 0
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == step), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return line + 1
