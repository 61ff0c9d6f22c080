"""What SGLang's log proves. Pure text in, facts out.

A line looks like ``[2026-01-31 12:00:00 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1024, ...``; every
rank writes its own, so only the lines of the first rank that appears are read where all say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?P<rank>(?: [A-Z]+\d+)*)\] (?P<text>.*)")
_START = re.compile(r"\] server_args=")
_KV = re.compile(r"KV Cache (?:is allocated|VA upper bound)\. dtype: (?P<dtype>\S+), #tokens: (?P<tokens>\d+)")
_POOL_END = re.compile(r"Memory pool end\.")
_WEIGHTS = re.compile(r"Load weight end\..* type=(?P<type>\w+),(?P<rest>.*?) avail mem=")
_LOADED = re.compile(r"Load weight end\..* mem usage=(?P<gib>-?\d+(?:\.\d+)?) GB")
_DRAFT = re.compile(
    r"Initialized DFLASH draft runner\. attention_backend=(?P<backend>[^,]+), model=(?P<model>[^,]+), "
    r"block_size=(?P<block>\d+), draft_window_size=(?P<window>[^,]+)"
)
_TREE = re.compile(r"Tree cache initialized: .*(?:hicache_attached|hierarchical)=(?P<on>True|False)")
_HOST_POOL = re.compile(
    r"Allocating (?P<label>.*?) ?hierarchical KV host pool: (?P<tokens>\d+) tokens, (?P<gb>[\d.]+) GB"
)
_STORAGE = re.compile(r"Creating storage backend '(?P<name>[^']+)'")
_DIRECTORY = re.compile(r"Created HiCacheFile storage directory at (?P<path>.+)")
_UNIT_SCALES = re.compile(r"\.?[kv]_scale is not loaded|Ignoring compressed-tensors kv_cache_scheme")
_SCALES_FILE_REFUSED = re.compile(r"Defaulting to KV cache scaling factors = 1\.0 for all layers")
_SCALES_FILE = re.compile(r"Loaded KV cache scaling factors from (?P<path>.+)")
_CAPACITY = re.compile(r"max_total_num_tokens=\d+, .*\bcontext_len=(?P<context>\d+)")


@dataclass(frozen=True)
class Found:
    """A fact and the line that says so."""

    value: str
    line: str


@dataclass
class LogFacts:
    """What a log says; ``None`` or empty for what it does not.

    ``kv``, ``draft_kv``      dtype of the target's and of the draft's KV pool, as torch spells it
    ``quant``, ``quant_algo``  method and algorithm in the checkpoint of the target, ``none`` when it is not quantized
    ``unit_scales``           that KV scales in the target's checkpoint were left there, or that a file of them was not
                              taken, so that 1.0 is used
    ``scales_file``           the file that KV scales were read from
    ``loaded_gib``            GiB that loading the target, and with it a draft, took of the GPU of the rank that took
                              most; ``loaded_lines`` say so, one for each model
    ``host_pool_gb``          decimal GB of all host pools of one rank; ``ranks`` ranks have such pools
    """

    kv: Found | None = None
    draft_kv: Found | None = None
    quant: Found | None = None
    quant_algo: Found | None = None
    draft_backend: Found | None = None
    draft_window: Found | None = None
    hicache: Found | None = None
    storage: Found | None = None
    directory: Found | None = None
    context_tokens: Found | None = None
    unit_scales: Found | None = None
    scales_file: Found | None = None
    loaded_gib: float = 0.0
    loaded_lines: list[str] = field(default_factory=list)
    host_pool_gb: float = 0.0
    host_pool_lines: list[str] = field(default_factory=list)
    ranks: int = 0


def read_log(text: str) -> LogFacts:
    """The facts in ``text``, of the last start that it holds."""
    text = text[max((match.start() for match in _START.finditer(text)), default=0) :]
    facts = LogFacts()
    by_rank: dict[str, list[str]] = {}
    for rank, line in _lines(text):
        by_rank.setdefault(rank, []).append(line)
    for lines in by_rank.values():
        for line in lines:
            _shared(facts, line)
    holders = [lines for lines in by_rank.values() if any(_KV.search(line) for line in lines)]
    if holders:
        _pools(facts, holders[0])
        _weights(facts, holders[0])
        _scales(facts, holders[0])
    for lines in by_rank.values():
        _loaded(facts, lines)
    hosts = [[line for line in lines if _HOST_POOL.search(line)] for lines in by_rank.values()]
    hosts = [lines for lines in hosts if lines]
    if hosts:
        facts.ranks, facts.host_pool_lines = len(hosts), hosts[0]
        facts.host_pool_gb = sum(float(match["gb"]) for line in hosts[0] if (match := _HOST_POOL.search(line)))
    return facts


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for raw in text.splitlines():
        match = _LINE.search(raw)
        if match is not None:
            yield match["rank"].strip(), match["text"].strip()


def _shared(facts: LogFacts, line: str) -> None:
    """Lines that say the same on every rank; the first one counts."""
    for name, pattern, group in (
        ("draft_backend", _DRAFT, "backend"),
        ("draft_window", _DRAFT, "window"),
        ("hicache", _TREE, "on"),
        ("storage", _STORAGE, "name"),
        ("directory", _DIRECTORY, "path"),
        ("context_tokens", _CAPACITY, "context"),
        ("scales_file", _SCALES_FILE, "path"),
    ):
        match = pattern.search(line)
        if match is not None and getattr(facts, name) is None:
            setattr(facts, name, Found(match[group].strip(), line))


def _pools(facts: LogFacts, lines: list[str]) -> None:
    """The target allocates its pools first and closes with "Memory pool end."; the draft does the same after it."""
    for line in lines:
        match = _KV.search(line)
        if match is not None:
            if facts.kv is None:
                facts.kv = Found(match["dtype"], line)
                closed = False
            elif closed and facts.draft_kv is None:
                facts.draft_kv = Found(match["dtype"], line)
        elif _POOL_END.search(line):
            closed = True


def _weights(facts: LogFacts, lines: list[str]) -> None:
    match, line = next(((m, line) for line in lines if (m := _WEIGHTS.search(line))), (None, ""))
    if match is None:
        return
    said = dict(part.strip().split("=", 1) for part in match["rest"].split(",") if "=" in part)
    facts.quant = Found(said.get("quant", "none"), line)
    if "quant_algo" in said:
        facts.quant_algo = Found(said["quant_algo"], line)


def _scales(facts: LogFacts, lines: list[str]) -> None:
    """Only lines before the target is loaded: those of a draft come after it. Of a file that SGLang cannot use it says
    so, takes 1.0, and says that it was loaded all the same."""
    for line in lines:
        if _WEIGHTS.search(line):
            return
        if _SCALES_FILE_REFUSED.search(line):
            facts.unit_scales, facts.scales_file = Found("unit", line), None
            return
        if _UNIT_SCALES.search(line) and facts.unit_scales is None:
            facts.unit_scales = Found("unit", line)


def _loaded(facts: LogFacts, lines: list[str]) -> None:
    loaded = [(float(match["gib"]), line) for line in lines if (match := _LOADED.search(line))]
    taken = sum(gib for gib, _ in loaded)
    if loaded and (not facts.loaded_lines or taken > facts.loaded_gib):
        facts.loaded_gib, facts.loaded_lines = taken, [line for _, line in loaded]
