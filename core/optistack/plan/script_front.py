"""The front of a plan in its launch script: it needs the Python that its plugin is installed in, and no engine's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from optistack.launch import FrontLaunch, Place

_PLACEHOLDER = re.compile(r"\{(port|folder|base)(?:\+(\d+))?\}")


def front_lines(front: FrontLaunch, replicas: Sequence[str]) -> Iterator[str]:
    """Shell lines that write the front's files and run it, with ``PORT``, ``FOLDER`` and ``BASE`` set.

    Replica ``n`` listens on the port that is ``n + 1`` after the front's, in its folder below ``BASE``; the front's
    further ports come behind those. FRONT_PYTHON can be set from outside.
    """
    place = Place(
        "{port}",
        "{folder}",
        [(f"http://127.0.0.1:{{port+{n + 1}}}", f"{{base}}/{name}") for n, name in enumerate(replicas)],
        {name: f"{{port+{len(replicas) + 1 + n}}}" for n, name in enumerate(front.ports)},
    )
    for file in front.files:
        yield f'cat > "$FOLDER"/{shlex.quote(file.name)} <<END_OF_FILE'
        yield f"{_in_heredoc(place.fill_text(file.content)).rstrip()}\nEND_OF_FILE"
    for variable in front.variables:
        yield f"export {variable.name}={_quoted(place.fill(variable.value))}"
    words = [_quoted(word) for word in front.argv_at("", place)[1:]]
    yield f'exec "${{FRONT_PYTHON:-python3}}" {" ".join(words)} "$@"'


def _quoted(word: str) -> str:
    parts, at = [], 0
    for found in _PLACEHOLDER.finditer(word):
        parts += [_plain(word[at : found.start()]), f'"{_variable(found)}"']
        at = found.end()
    return "".join([*parts, _plain(word[at:])]) or "''"


def _plain(text: str) -> str:
    return shlex.quote(text) if text else ""


def _in_heredoc(text: str) -> str:
    escaped = re.sub(r"([\\$`])", r"\\\1", text)
    return _PLACEHOLDER.sub(_variable, escaped)


def _variable(found: re.Match[str]) -> str:
    name, offset = found[1].upper(), found[2]
    return f"$(({name} + {offset}))" if offset else f"${name}"
