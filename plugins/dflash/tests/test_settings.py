"""What the plugin asks of each engine."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import InputError, PlanRefusedError
from optistack.facts import load_node
from optistack.settings import KVLayout, Serving, choose
from optistack.stack.spec import ParallelSection, WorkloadSection


def test_the_block_less_the_known_token_is_drafted(bench: Any) -> None:
    speculation = bench.resolve().speculation
    assert speculation.method.value == "dflash"
    assert speculation.num_draft_tokens.value == 7
    assert speculation.draft_checkpoint.value == str(bench.draft_folder)


def test_fewer_tokens_can_be_asked_for_and_more_cannot(bench: Any) -> None:
    assert bench.resolve(num_draft_tokens=4).speculation.num_draft_tokens.value == 4
    with pytest.raises(PlanRefusedError, match="num_draft_tokens is 8.*trained to draft 7"):
        bench.resolve(num_draft_tokens=8)


def test_another_plugin_cannot_raise_the_number_of_tokens_either(bench: Any) -> None:
    from optistack.settings import Speculation

    bench.others = [Speculation(num_draft_tokens=choose(9))]
    with pytest.raises(PlanRefusedError, match="num_draft_tokens = 9.*at most 7"):
        bench.resolve()


def test_an_unknown_option_is_refused_with_the_nearest(bench: Any) -> None:
    with pytest.raises(InputError, match="Did you mean 'num_draft_tokens'"):
        bench.resolve(num_draft_token=3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"draft": "/no/draft"}, "Option draft of plugin dflash: There is no folder /no/draft"),
        ({"draft": "a/b", "draft_config": "/no/config"}, "draft_config of plugin dflash: There is no /no/config"),
    ],
)
def test_a_draft_that_is_missing_is_said_with_its_option(bench: Any, options: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        bench.resolve(**options)


def test_a_draft_that_is_not_here_is_planned_from_its_config(bench: Any) -> None:
    config = bench.write("elsewhere", bench.draft) / "config.json"
    stack = bench.resolve(draft="someone/kimi-dflash", draft_config=str(config))
    assert stack.speculation.draft_checkpoint.value == "someone/kimi-dflash"
    assert stack.speculation.num_draft_tokens.value == 7


class TestServing:
    def test_running_requests_follow_the_workload(self, bench: Any) -> None:
        bench.workload = WorkloadSection(concurrency=5)
        requests = bench.resolve().serving.max_running_requests
        assert requests.value == 10
        assert "48" in requests.origins[0].why

    def test_what_the_user_asks_for_stays(self, bench: Any) -> None:
        bench.others = [Serving(max_running_requests=choose(64))]
        assert bench.resolve().serving.max_running_requests.value == 64

    def test_vllm_keeps_a_block_for_each_request_in_a_pass(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", others=[Serving(max_running_requests=choose(1024))])
        assert bench.resolve().serving.chunked_prefill_tokens.at_least == 1024 * 8
        bench.others.append(Serving(chunked_prefill_tokens=choose(4096)))
        with pytest.raises(PlanRefusedError, match=r"chunked_prefill_tokens = 4096.*at least 8192.*dflash"):
            bench.resolve()

    def test_vllms_default_budget_is_raised_only_where_it_is_too_small(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", traits={"default_prefill_tokens": 2048})
        assert not bench.resolve().serving.chunked_prefill_tokens.is_set
        bench.workload = WorkloadSection(concurrency=200)
        assert bench.resolve().serving.chunked_prefill_tokens.value == 400 * 8

    def test_a_group_of_vllm_has_its_part_of_the_requests_and_their_blocks(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", parallel=ParallelSection(tensor=4, attention_data=4))
        bench.workload = WorkloadSection(concurrency=5)
        serving = bench.resolve().serving
        assert serving.max_running_requests.value == 12, "three for each of four groups"
        assert serving.chunked_prefill_tokens.at_least == 3 * 8

    def test_a_short_draft_with_yarn_limits_the_context_on_vllm_0_33(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm")
        bench.draft["rope_scaling"] = {"rope_type": "yarn", "factor": 4}
        bench.draft["max_position_embeddings"] = 2048
        assert bench.resolve().serving.context_tokens.at_most == 2048
        bench.version = "0.32.0"
        assert not bench.resolve().serving.context_tokens.has_opinion


class TestAttentionBackend:
    @pytest.mark.parametrize(
        ("target", "draft"),
        [("trtllm_mla", "flashinfer"), ("fa3", "fa3"), ("triton", "triton"), ("trtllm_mha", "fa4")],
    )
    def test_sglang_says_aloud_what_it_would_settle_on(self, bench: Any, target: str, draft: str) -> None:
        bench.others = [Serving(attention_backend=choose(target))]
        assert bench.resolve().speculation.draft_attention_backend.value == draft

    def test_a_windowed_draft_stays_on_trtllm_mha(self, bench: Any) -> None:
        bench.draft.update(layer_types=["sliding_attention"] * 2, sliding_window=512)
        bench.others = [Serving(attention_backend=choose("trtllm_mha"))]
        assert bench.resolve().speculation.draft_attention_backend.value == "trtllm_mha"

    def test_kernels_that_sglang_would_replace_are_refused(self, bench: Any) -> None:
        with pytest.raises(PlanRefusedError, match="draft_attention_backend = trtllm_mla is not one of"):
            bench.resolve(draft_attention_backend="trtllm_mla")

    def test_vllm_on_blackwell_avoids_flashinfer(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm")
        assert bench.resolve().speculation.draft_attention_backend.value == "FLASH_ATTN"
        bench.node = load_node("h200x4")
        assert not bench.resolve().speculation.draft_attention_backend.is_set

    def test_nothing_is_said_on_a_cpu(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", device="cpu", node=load_node("cpu"))
        assert not bench.resolve().speculation.draft_attention_backend.is_set


class TestQuantization:
    def test_a_plain_draft_of_a_quantized_target_stays_plain(self, bench: Any) -> None:
        bench.target["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
        assert bench.resolve().speculation.draft_quantization.value == "none"

    def test_nothing_is_said_for_a_plain_target(self, bench: Any) -> None:
        assert not bench.resolve().speculation.draft_quantization.is_set

    def test_the_option_wins(self, bench: Any) -> None:
        bench.target["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
        assert bench.resolve(draft_quantization="fp8").speculation.draft_quantization.value == "fp8"


class TestWindow:
    def test_a_window_holds_at_least_a_block(self, bench: Any) -> None:
        assert bench.resolve(draft_window_tokens=512).speculation.draft_window_tokens.value == 512
        with pytest.raises(PlanRefusedError, match="draft_window_tokens = 4 is not at least 8"):
            bench.resolve(draft_window_tokens=4)


class TestCharges:
    """The draft here: fc 64 x 192, and per layer 64x64 q and o, 64x32 k and v, three 64x128, norms; BF16."""

    def charge(self, bench: Any, what: str) -> Any:
        return next(charge for charge in bench.resolve().charges if charge.what == what)

    def test_weights_are_divided_and_the_projection_is_not(self, bench: Any) -> None:
        whole = self.charge(bench, "draft weights").per_gpu_bytes
        layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
        norms = 64 + 64 + 2 * (2 * 64 + 2 * 8)
        assert whole == 2 * (64 * 192 + layers + norms)
        bench.parallel = bench.parallel.model_copy(update={"tensor": 4})
        assert self.charge(bench, "draft weights").per_gpu_bytes == 2 * (64 * 192 + layers // 4 + norms)

    @pytest.mark.parametrize("tensor", [1, 4])
    def test_ranks_are_spoken_of_where_there_are_several(self, bench: Any, tensor: int) -> None:
        bench.parallel = bench.parallel.model_copy(update={"tensor": tensor})
        for what in ("draft weights", "draft KV"):
            assert (" 4 ranks" in self.charge(bench, what).why) is (tensor == 4)
            assert " 1 ranks" not in self.charge(bench, what).why

    def test_each_attention_group_has_a_whole_draft(self, bench: Any) -> None:
        whole = {charge.what: charge for charge in bench.resolve().charges}
        bench.parallel = bench.parallel.model_copy(update={"tensor": 4, "attention_data": 4})
        for what in ("draft weights", "draft KV"):
            here = self.charge(bench, what)
            assert here.per_gpu_bytes == whole[what].per_gpu_bytes
            assert here.per_kv_token_bytes == whole[what].per_kv_token_bytes

    def test_sglang_gathers_the_embedding_where_a_group_divides_it(self, bench: Any, make_bench: Any) -> None:
        def charged(bench: Any, **parallel: int) -> list[int]:
            bench.parallel = ParallelSection(**parallel)
            return [charge.per_gpu_bytes for charge in bench.resolve().charges if charge.what == "draft embedding"]

        assert charged(bench, tensor=4, attention_data=2) == [bench.model.vocab * 64 * 2]
        assert not charged(bench, tensor=4) and not charged(bench, tensor=4, attention_data=4)
        assert not charged(make_bench(backend="vllm"), tensor=4, attention_data=2)

    @pytest.mark.parametrize(("dtype", "value_bytes"), [("bfloat16", 2), ("fp8_e4m3", 1)])
    def test_its_kv_is_charged_in_its_own_dtype(self, bench: Any, dtype: str, value_bytes: int) -> None:
        bench.others = [KVLayout(dtype=choose("fp8_e4m3"), draft_dtype=choose(dtype))]
        assert self.charge(bench, "draft KV").per_kv_token_bytes == 2 * 4 * 8 * 2 * value_bytes

    def test_without_its_own_dtype_it_follows_the_target(self, bench: Any) -> None:
        bench.others = [KVLayout(dtype=choose("fp8_e4m3"))]
        assert self.charge(bench, "draft KV").per_kv_token_bytes == 2 * 4 * 8 * 2

    @pytest.mark.parametrize(("copies", "how"), [(1, "in place"), (2, "concatenated")])
    def test_hidden_states_are_charged_as_often_as_the_engine_holds_them(
        self, bench: Any, copies: int, how: str
    ) -> None:
        bench.traits = {"aux_hidden_state_copies": copies, "default_prefill_tokens": 4096}
        charge = self.charge(bench, "draft hidden states")
        assert charge.per_gpu_bytes == copies * 4096 * 3 * 64 * 2
        assert how in charge.why
        assert "sglang 0.5.23" in charge.why

    def test_a_smaller_prefill_pass_holds_fewer(self, bench: Any) -> None:
        bench.traits = {"aux_hidden_state_copies": 1, "default_prefill_tokens": 4096}
        bench.others = [Serving(chunked_prefill_tokens=choose(1024))]
        assert self.charge(bench, "draft hidden states").per_gpu_bytes == 1024 * 3 * 64 * 2
