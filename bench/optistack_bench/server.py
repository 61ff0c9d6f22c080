"""What a server says about itself, as far as figures depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.errors import CheckFailedError, InputError
from optistack.verify.endpoint import Endpoint
from optistack_bench.result import Server

if TYPE_CHECKING:
    from optistack_bench.target import Target


def read_server(front: Endpoint, engine: Endpoint, target: Target, context_tokens: int | None) -> Server:
    """Ask ``front``, and the first ``engine`` behind it. Raises InputError when nobody answers, or no model is served.

    ``context_tokens`` overrules what the server says of its context.
    """
    from optistack_conformance.engine import read_engine

    try:
        info, model = read_engine(engine), front.model()
    except CheckFailedError as error:  # before anything is measured, it is the address that is wrong
        raise InputError(error.message, fix=error.fix) from error
    return Server(
        url=target.shown_url,
        model=model,
        engine=info.name,
        engine_version=info.version,
        context_tokens=context_tokens or info.max_tokens,
        kv_tokens=info.kv_tokens,
        kv_dtype=info.kv_dtype,
        gpus=target.gpus,
        plan_hash=target.plan_hash,
        planned_kv_tokens=target.planned_kv_tokens,
    )
