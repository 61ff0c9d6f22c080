"""The plugin contract, whole.

A plugin is a distribution ``optistack-<name>`` with a module ``optistack_<name>`` and one entry point::

    [project.entry-points."optistack.plugins"]
    my-name = "optistack_my_name"

The module defines the hooks below that it needs, each marked with ``@optistack.hookimpl``. Only ``optistack_plugin`` is
required. Everything returned is a typed value, checked by the host; a hook never returns engine flags, touches a GPU,
opens a connection or imports an engine (``optistack_probe`` alone talks to a running engine).

Domain hooks are called in the order quantization, KV, speculation, cache tiers, routing; inside a domain by
``before``/``after`` of :class:`~optistack.plugin.PluginInfo` and then by name. Never by order of registration.
Several plugins may implement one hook: their opinions are merged (:mod:`optistack.settings.values`), and two different
wishes for one setting refuse the plan, naming both.
"""

# A specification has a docstring and no body.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optistack.markers import hookspec

if TYPE_CHECKING:
    import typer

    from optistack.cases import ConformanceCase
    from optistack.context import PlanContext
    from optistack.launch import FrontLaunch
    from optistack.plan.plan import Plan
    from optistack.plugin import PluginInfo
    from optistack.rules import Rule
    from optistack.settings import CacheTier, KVLayout, Routing, Speculation, WeightQuantization
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.front import RunningFront
    from optistack.verify.receipt import CheckResult


# ------------------------------------------------------------------------------------------------------------------
# Identity
# ------------------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def optistack_plugin() -> PluginInfo:
    """Say who you are: name, domain, version, options. Required.

    Called once, when the plugin is loaded. It must not do any work.
    """


# ------------------------------------------------------------------------------------------------------------------
# Domains: while the stack is resolved
# ------------------------------------------------------------------------------------------------------------------


@hookspec
def optistack_quantize_weights(ctx: PlanContext) -> WeightQuantization | None:
    """Say what the weights are and which kernels run them.

    :param ctx: the model, the node, the engine, your options, and the settings so far.
    :returns: your opinions, or ``None`` when you have none here.

    Example::

        return WeightQuantization(moe_backend=suggest("flashinfer_trtllm", why="fastest NVFP4 experts on SM100"))
    """


@hookspec
def optistack_lay_out_kv(ctx: PlanContext) -> KVLayout | None:
    """Say how KV lies in device memory: dtype, page size, where FP8 scales come from.

    :param ctx: as above; ``ctx.so_far.quantization`` is settled.
    """


@hookspec
def optistack_speculate(ctx: PlanContext) -> Speculation | None:
    """Say how tokens are drafted. Charge the draft's weights and KV as ``charges``.

    :param ctx: as above; ``ctx.so_far.kv`` is settled.
    """


@hookspec
def optistack_tier_cache(ctx: PlanContext) -> Sequence[CacheTier] | None:
    """Say which KV tiers lie below the device. Charge host RAM as ``charges``.

    :param ctx: as above; ``ctx.so_far.speculation`` is settled, so a draft's KV can be counted in.
    """


@hookspec
def optistack_route(ctx: PlanContext) -> Routing | None:
    """Say how requests are spread over replicas. ``front`` asks for a process of yours before them."""


# ------------------------------------------------------------------------------------------------------------------
# Shared: around the plan and the running engine
# ------------------------------------------------------------------------------------------------------------------


@hookspec
def optistack_rules() -> Sequence[Rule]:
    """Rules of your own: conflicts, needs, warnings. They are evaluated only when your plugin is in the stack."""


@hookspec
def optistack_front(plan: Plan) -> FrontLaunch | None:
    """Launch the process that stands before the replicas. Asked only where ``routing.front`` is on.

    The deployment starts it beside the replicas, with optistack's own Python, and watches and stops it with them. It
    takes ``serving.host`` and ``serving.port``; the engines listen on loopback, on ports that are picked. An argument
    with ``{replica.url}`` or ``{replica.folder}`` is given once for each replica. Its ``ready_path`` must answer 200
    only once every replica can be reached through it. Exactly one plugin of a stack may answer.

    :param plan: everything but the front: settings merged, replicas rendered.
    :returns: the launch, each argument with the setting it carries, who wished for it and why.
    """


@hookspec
def optistack_before_start(plan: Plan) -> None:
    """Look once more, just before the engines are started, at what the machine must have for your settings to work.

    A plan may be older than this moment, and made elsewhere: a lock file is applied as it is, and rules that look at
    the disk or into the engine's environment were evaluated where it was made. Called by whatever starts a plan, for
    all of its replicas, just before each start; where several plans are started in turn, for each of them before the
    first, too. It changes nothing and is quick. Raise :class:`~optistack.errors.PlanRefusedError`, with the fix, when
    it cannot work here.

    :param plan: the plan that is about to be started; ``plan.engine.python`` is the engine's on this machine.
    """


@hookspec
def optistack_probe(plan: Plan, endpoint: Endpoint) -> Sequence[CheckResult]:
    """Check on the running engine that what you promised took effect.

    Settings that the engine reports are compared by the host already; a probe is for what only shows when requests are
    served (counters that move, tokens that come from the cache). It may send a few small requests. A probe that cannot
    tell returns ``unproven`` with the reason, never ``pass``.

    :param plan: the plan that the engine was started from.
    :param endpoint: a client of the running engine.
    """


@hookspec
def optistack_probe_front(plan: Plan, front: RunningFront) -> Sequence[CheckResult]:
    """Check on the running front that what its plugin promised took effect. Called once, after the replicas' probes.

    :param plan: the plan that the deployment was started from.
    :param front: clients of the front and of the replicas behind it, and the ports it was given.
    """


@hookspec
def optistack_conformance() -> Sequence[ConformanceCase]:
    """Cases that your plugin must pass in any composition; the conformance suite runs them."""


@hookspec
def optistack_commands() -> Mapping[str, typer.Typer]:
    """Commands of your own, mounted as ``optistack <name> ...``. Import what they need inside them."""
