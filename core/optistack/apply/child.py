"""How the supervisor starts a process and waits until it serves."""

from __future__ import annotations

import asyncio
import os
import subprocess

import httpx

from optistack.apply.folder import DeploymentFolder
from optistack.apply.launch import ProcessSpec
from optistack.apply.processes import KEEPER_MARK, MARK, ProcessId, die_with_parent, marked
from optistack.apply.shared_memory import run_name
from optistack.launch import RUN

PROCESS_MARK = "OPTISTACK_PROCESS"
"""Beside MARK: which process of its deployment something belongs to."""

READY_POLL_S = 0.1
# SGLang's /health generates a token, which can wait behind a long prefill.
READY_REQUEST_TIMEOUT_S = 20.0


def start_child(process: ProcessSpec, folder: DeploymentFolder, deployment_id: str) -> subprocess.Popen[bytes]:
    """Start ``process`` in a session of its own, marked, writing to its log, and dying with this one.

    Raises OSError or subprocess.SubprocessError when it cannot be run.
    """
    environment = {name: value for name, value in os.environ.items() if name != KEEPER_MARK}
    # Both engines rename their processes with setproctitle, which overwrites the environment that /proc shows, and the
    # mark with it, unless SPT_NOENV is set.
    marks = {MARK: deployment_id, PROCESS_MARK: f"{deployment_id}/{process.name}"}
    environment |= {"SPT_NOENV": "1", **process.env, **marks}
    argv = [word.replace(RUN, run_name(deployment_id, process.name)) for word in process.argv]
    parent = os.getpid()
    with folder.log_file(process.name).open("ab") as log:
        return subprocess.Popen(
            argv,
            env=environment,
            cwd=process.cwd or folder.path,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )


def marked_process(deployment_id: str, name: str) -> list[ProcessId]:
    """What lives of the process ``name`` and its children, by the mark in their environment."""
    return marked(f"{deployment_id}/{name}", name=PROCESS_MARK)


async def until_ready(process: ProcessSpec) -> None:
    """Return once ``ready_url`` answers 200. Raises TimeoutError after ``ready_timeout_s``."""
    # Proxies from the environment are not for an engine of ours.
    async with (
        asyncio.timeout(process.ready_timeout_s),
        httpx.AsyncClient(trust_env=False, timeout=READY_REQUEST_TIMEOUT_S) as client,
    ):
        while not await _answers(client, process.ready_url):
            await asyncio.sleep(READY_POLL_S)


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.HTTPError:
        return False
