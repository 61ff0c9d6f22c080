"""``optistack route``: run the router, look at it, and simulate its policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from optistack_routing.simulate.cli import simulate

app = typer.Typer(
    name="route",
    help="Put a fleet of engine replicas behind one OpenAI-compatible address.",
    invoke_without_command=True,
    add_completion=False,
)


@app.callback()
def route(
    context: typer.Context,
    replica: Annotated[list[str] | None, typer.Option(metavar="URL", help="A replica; may be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of options; the command line comes first.")] = None,
    replica_file: Annotated[Path | None, typer.Option(help="File with one URL a line; it is watched.")] = None,
    replica_dns: Annotated[str | None, typer.Option(metavar="NAME:PORT", help="One replica for each address.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [8080]")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of the admin side. [127.0.0.1]")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Port of the admin side and its metrics. [8081]")] = None,
    policy: Annotated[str | None, typer.Option(help="How a replica is chosen.")] = None,
    session_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A header that names the session; may be repeated.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes. [1]")] = None,
    access_log: Annotated[str | None, typer.Option(metavar="FILE", help="JSON lines; - for stderr.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="Keys that clients must send one of.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate of the front side.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the front side.")] = None,
) -> None:
    """Put a fleet of engine replicas behind one OpenAI-compatible address."""
    if context.invoked_subcommand is not None:
        return
    from optistack_routing.router.config import load
    from optistack_routing.router.run import run

    given: dict[str, Any] = {
        "replicas": replica,
        "replica_file": replica_file,
        "replica_dns": replica_dns,
        "host": host,
        "port": port,
        "admin_host": admin_host,
        "admin_port": admin_port,
        "policy": policy,
        "session_headers": session_header,
        "workers": workers,
        "access_log": access_log,
        "api_key_file": api_key_file,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
    }
    run(load(config, {name: value for name, value in given.items() if value is not None}))


@app.command()
def top(
    admin: Annotated[str, typer.Option(metavar="URL", help="The router's admin side.")] = "http://127.0.0.1:8081",
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How often it is read.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print it once, as JSON.")] = False,
) -> None:
    """Show a running router: replicas, load, sessions, latencies."""
    from optistack_routing.admin.top import client, fetch, screen, watch

    if not once and not json:
        watch(admin, every)
        return
    with client(admin) as reader:
        now = fetch(reader)
    if json:
        from optistack.cli.screen import print_json

        print_json(now)
    else:
        from optistack.cli.screen import show

        show(screen(now))


app.command()(simulate)
