"""The log of a process: written by the process itself, kept from growing without end, read back in order.

A process writes straight to its file, so the supervisor is never in its way. Once the file passes ``CAP_BYTES`` it is
copied aside and cut. The first part is kept for good, since it holds the proof of what took effect; of the rest the
last whole part and the current one are kept: three times ``CAP_BYTES`` at most. A line that is written between copy
and cut is lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from optistack.apply.diagnose import without_prefix
from optistack.apply.folder import DeploymentFolder

CAP_BYTES = 64 << 20
READ_BYTES = 8 << 20


def log_files(folder: DeploymentFolder, process_name: str) -> list[Path]:
    """The parts of the log that exist, oldest first."""
    log = folder.log_file(process_name)
    parts = (log.with_name(log.name + ".first"), log.with_name(log.name + ".last"), log)
    return [part for part in parts if part.exists()]


def cap_log(folder: DeploymentFolder, process_name: str, *, cap_bytes: int = CAP_BYTES) -> None:
    log = folder.log_file(process_name)
    try:
        if log.stat().st_size <= cap_bytes:
            return
    except FileNotFoundError:
        return
    first = log.with_name(log.name + ".first")
    aside = log.with_name(log.name + ".last") if first.exists() else first
    partial = log.with_name(log.name + ".partial")
    shutil.copyfile(log, partial)
    partial.replace(aside)
    os.truncate(log, 0)


def log_size_bytes(folder: DeploymentFolder, process_name: str) -> int:
    """Of the current part."""
    return folder.log_file(process_name).stat().st_size


def read_log(folder: DeploymentFolder, process_name: str, *, last_bytes: int = READ_BYTES, after_bytes: int = 0) -> str:
    """The last ``last_bytes`` of the current part, as text; a line that is cut at the front is left out.

    ``after_bytes`` leaves out what the log held when it was that long, unless it was cut since.
    """
    try:
        with folder.log_file(process_name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = after_bytes if after_bytes <= size else 0
            file.seek(max(start, size - last_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return text if size - start <= last_bytes else text.partition("\n")[2]


def last_line(folder: DeploymentFolder, process_name: str) -> str:
    """What the newest line says, without its prefix. Blank lines and those that continue another are passed over."""
    lines = map(without_prefix, reversed(read_log(folder, process_name, last_bytes=4096).splitlines()))
    return next((line for line in lines if line and not line[0].isspace()), "")
