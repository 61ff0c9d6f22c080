"""Load a stack: the file, what the command line changes in it, and what plugins say about their options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optistack.errors import OptistackError
from optistack.host import Host
from optistack.stack.document import Document, read_document
from optistack.stack.overrides import Overrides, apply_overrides, none_of
from optistack.stack.problems import Problem, StackFileError, problems_of
from optistack.stack.references import resolve_paths
from optistack.stack.spec import StackSpec


def load_stack(path: Path, host: Host, overrides: Overrides | None = None) -> StackSpec:
    """The stack in the file ``path``, with ``overrides``, every path in it absolute.

    The options of every plugin are checked against its option model; they are stored as written, since
    their defaults belong to the plan. Raises InputError for a file that is no stack file, StackFileError for
    wrong keys and values: each problem with file and line.
    """
    document = read_document(path)
    # Those that do not load count as installed: validation then says why they do not, and not that they are unknown.
    names = [plugin.name for plugin in host.plugins()] + [failure.name for failure in host.failures]
    apply_overrides(document, overrides or Overrides(), [*names, *host.disabled])
    spec = validate(document, host)
    models = {plugin.name: plugin.info.options for plugin in host.select(spec.plugins)}
    return resolve_paths(spec, path.absolute().parent, models, document.said)


def validate(document: Document, host: Host) -> StackSpec:
    """``document`` as a stack. Raises StackFileError with every problem in it, in the order of its lines."""
    data = {key: value for key, value in document.data.items() if value is not None}
    plugins = data.get("plugins")
    problems: list[Problem] = []
    if isinstance(plugins, dict):
        data["plugins"] = plugins = {name: options or {} for name, options in plugins.items()}
        problems.extend(_plugin_problems(document, host, plugins))
    elif isinstance(plugins, list) and all(isinstance(name, str) for name in plugins):
        fix = f"Write each as a key: `{plugins[0]}:`." if plugins else "Leave the key out."
        problems.append(Problem(document.where(("plugins",)), "plugins is a list.", fix))
        data["plugins"] = {}
    spec = None
    try:
        spec = StackSpec.model_validate(data)
    except ValidationError as error:
        problems.extend(problems_of(error, StackSpec, document.where))
    if problems or spec is None:
        raise StackFileError(sorted(problems, key=_place))
    return spec


def _plugin_problems(document: Document, host: Host, plugins: dict[str, Any]) -> Iterator[Problem]:
    missing = host.missing(plugins)
    if len(missing) > 1:
        message, fix = none_of(missing, [plugin.name for plugin in host.plugins()])
        yield Problem(document.where(("plugins", missing[0])), message, fix)
    for name, options in plugins.items():
        if len(missing) > 1 and name in missing:
            continue
        steps = ("plugins", name)
        try:
            plugin = host.get(name)
        except OptistackError as error:
            yield Problem(document.where(steps), error.message, error.fix)
            continue
        if not isinstance(options, dict):
            continue  # StackSpec says so
        try:
            plugin.info.read(options)
        except ValidationError as error:
            yield from problems_of(
                error, plugin.info.options, document.where, above=steps, whole=f"plugin {plugin.name}"
            )


def _place(problem: Problem) -> tuple[bool, str, int]:
    """The command line's problems first, then those of the file by line."""
    file, _, line = problem.where.rpartition(":")
    return (line.isdigit(), file, int(line)) if line.isdigit() else (False, problem.where, 0)
