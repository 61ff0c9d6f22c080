"""Whatever an engine or a log says, reading it does not fail and proves nothing by accident."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from optistack.verify.metrics import Metrics
from optistack_adapters.sglang.log import read_log
from optistack_adapters.sglang.server_info import read_server_info
from optistack_adapters.sglang.tier_proofs import read_tiers
from optistack_adapters.sglang.weight_memory import read_weight_memory
from optistack_adapters.sglang.words import kv_dtype, kv_word

FIELDS = (
    "version",
    "page_size",
    "kv_cache_dtype",
    "attention_backend",
    "attn_dp_size",
    "dp_size",
    "enable_dp_attention",
    "tp_size",
    "internal_states",
    "memory_usage",
    "weight",
    "cuda_graph_config",
    "device",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
    "speculative_draft_model_quantization",
    "disable_radix_cache",
    "moe_runner_backend",
    "max_total_num_tokens",
    "max_running_requests",
    "enable_hierarchical_cache",
    "hicache_size",
    "hicache_storage_backend",
    "hicache_write_policy",
)

scalars = st.sampled_from([None, True, False, -1, 0, 1, 64, 0.5, "", "auto", "cuda", "DFLASH", "fp8_e4m3", "file"])
anything = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), scalars, max_size=2)
nested = anything | st.lists(anything | st.dictionaries(st.just("memory_usage"), anything), max_size=2)
infos = st.dictionaries(st.sampled_from(FIELDS), nested)
patient = settings(deadline=None)  # other work on the machine is no failure

START = "[2026-11-29 12:00:00 TP0] "
lines = st.sampled_from(
    [
        f"{START}KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1, KV size: 1 GB",
        f"{START}Memory pool end. avail mem=1.00 GB",
        f"{START}Load weight end. elapsed=1 s, type=A, quant=fp8, avail mem=1 GB",
        f"{START}Load weight end. elapsed=1 s, type=A, avail mem=1.00 GB, mem usage=-0.50 GB.",
        f"{START}Tree cache initialized: source=a hicache_attached=False",
        f"{START}Allocating kv hierarchical KV host pool: 5 tokens, 1.50 GB host memory.",
        START,
        "no line of SGLang's",
    ]
)


@patient
@given(infos)
def test_any_information_can_be_read(info: dict[str, Any]) -> None:
    for path, observed in read_server_info(info).items():
        assert path
        assert observed.proof.startswith("/server_info ")


@patient
@given(infos, st.lists(lines).map("\n".join))
def test_any_information_beside_any_log_can_be_read(info: dict[str, Any], log: str) -> None:
    for path, observed in read_tiers(info, read_log(log), Metrics(())).items():
        assert path.startswith("tiers.")
        assert observed.proof
    for observed in read_weight_memory(info, read_log(log), Metrics(())).values():
        assert observed.proof


@patient
@given(st.text(alphabet=st.characters(codec="ascii")))
def test_any_text_is_a_log(text: str) -> None:
    facts = read_log(text)
    assert facts.host_pool_gb >= 0


@patient
@given(st.lists(lines))
def test_the_draft_comes_after_the_target(log: list[str]) -> None:
    facts = read_log("\n".join(log))
    pools = [line for line in log if "KV Cache is allocated" in line]
    assert (facts.kv is None) == (not pools)
    if facts.draft_kv is not None:
        first = log.index(pools[0])
        assert any("Memory pool end" in line for line in log[first:])


@patient
@given(st.sampled_from(["bfloat16", "fp8_e4m3", "fp8_e5m2", "nvfp4"]))
def test_a_kv_word_means_the_dtype_that_it_was_made_from(dtype: str) -> None:
    assert kv_dtype(kv_word(dtype)) == dtype
