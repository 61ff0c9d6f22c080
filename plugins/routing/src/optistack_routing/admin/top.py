"""``optistack route top``: the state of a running router, once or again and again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from optistack.errors import CheckFailedError, InputError
from optistack_routing.admin.state import quantile
from optistack_routing.fleet.address import read_address
from optistack_routing.proxy.record import GAP_S, TTFT_S
from optistack_routing.router.config import ADMIN_KEY_VARIABLE

if TYPE_CHECKING:
    import httpx
    from rich.console import Group

MIGRATIONS = ("spilled", "rehomed", "failed_over")


def client(url: str) -> httpx.Client:
    """A client of the admin side at ``url``; its key comes from the environment. Raises InputError for no URL."""
    import httpx

    try:
        url = read_address(url).url
    except InputError:
        raise InputError(f"--admin {url} is not the URL of an admin side.", fix="Write http://HOST:PORT.") from None
    key = os.environ.get(ADMIN_KEY_VARIABLE, "")
    return httpx.Client(base_url=url, timeout=5.0, headers={"Authorization": f"Bearer {key}"} if key else {})


def fetch(admin: httpx.Client) -> dict[str, Any]:
    """Raises CheckFailedError when there is no router, or it refuses."""
    import httpx

    try:
        answer = admin.get("/state")
        data = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        fix = "Start the router, or give its admin address with --admin."
        raise CheckFailedError(f"No router answers at {admin.base_url}: {error}.", fix=fix) from None
    refusal = data.get("error") if isinstance(data, dict) else None
    if answer.status_code != 200 and isinstance(refusal, dict):
        said = refusal.get("message", answer.status_code)
        raise CheckFailedError(f"The router refuses: {said}", fix=f"Set {ADMIN_KEY_VARIABLE}.")
    if answer.status_code != 200 or not isinstance(data, dict) or "replicas" not in data:
        fix = "Give the router's admin address with --admin; an engine or the router's front has none."
        raise CheckFailedError(f"{admin.base_url} is no router's admin side.", fix=fix)
    return data


def screen(now: dict[str, Any], before: dict[str, Any] | None = None) -> Group:
    """``now`` as it is shown; rates are since ``before``."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("replica", "state", "in flight", "", "prefill tokens", "KV", "why"):
        table.add_column(name, justify="right" if name in ("in flight", "prefill tokens", "KV") else "left")
    most = max([replica["in_flight"] for replica in now["replicas"]], default=0)
    for replica in now["replicas"]:
        kv = replica["kv_utilisation"]
        table.add_row(
            replica["url"],
            _state(replica),
            str(replica["in_flight"]),
            Text("█" * round(20 * replica["in_flight"] / most) if most else "", style="cyan"),
            f"{replica['pending_prefill_tokens']:,}",
            "" if kv is None else f"{kv:.0%}",
            replica["error"],
        )
    return Group(*[Text(line) for line in _summary(now, before)], Text(), table)


def _state(replica: dict[str, Any]) -> str:
    if replica["leaving"] or replica["draining"]:
        return "leaving" if replica["leaving"] else "draining"
    if replica["health"] == "up" and replica["circuit"] != "closed":
        return f"circuit {replica['circuit']}"
    return str(replica["health"])


def _summary(now: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    counted, load, sessions = now["counted"], now["load"], now["sessions"]
    reasons = counted["reasons"]
    served, retries, refused = (sum(counted[name].values()) for name in ("answers", "retries", "refusals"))
    rate = ""
    if before is not None and now["up_s"] > before["up_s"]:
        done = served - sum(before["counted"]["answers"].values())
        rate = f" ({done / (now['up_s'] - before['up_s']):.1f}/s)"
    homes = ", ".join(f"{count} with {home}" for home, count in sorted(sessions["by_homes"].items()))
    return [
        f"policy {now['policy']}, up {now['up_s']:.0f} s, {'ready' if now['ready'] else 'no replica is ready'}",
        f"in flight {now['in_flight']}, waiting {now['waiting']}, mean {load['mean']:.2f} a replica, "
        f"variance/mean {load['variance_over_mean']:.2f}",
        f"answered {served}{rate}, retries {retries}, refused {refused}",
        f"sessions {sessions['known']}{f' (homes: {homes})' if homes else ''}, splits {reasons.get('split', 0)}, "
        f"migrations {sum(reasons.get(reason, 0) for reason in MIGRATIONS)}",
        f"TTFT {_quantiles(counted['ttft'], TTFT_S)}, chunk gap {_quantiles(counted['gaps'], GAP_S)}",
        f"cached tokens {_hits(counted['sums'])}",
    ]


def _quantiles(histogram: dict[str, Any], bounds: tuple[float, ...]) -> str:
    values = [quantile(histogram["counts"], bounds, share) for share in (0.5, 0.95, 0.99)]
    if None in values:
        return "-"
    return "/".join(f"{1000 * (value or 0):.0f}" for value in values) + " ms (p50/p95/p99)"


def _hits(sums: dict[str, float]) -> str:
    prompt = sums.get("compared_prompt_tokens", 0)
    if not prompt:
        return "- (no answer has said)"
    return (
        f"{sums['cached_tokens'] / prompt:.1%} of the prompts, {sums['predicted_cached_tokens'] / prompt:.1%} predicted"
    )


def watch(url: str, every_s: float) -> None:
    """Draw the state until interrupted."""
    import time

    from rich.live import Live

    with client(url) as admin:
        before, now = None, fetch(admin)
        with Live(screen(now), auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                before, now = now, fetch(admin)
                live.update(screen(now, before), refresh=True)
