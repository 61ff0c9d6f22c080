"""What is refused before an engine starts, and that no two settings share a storage folder."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugins.hicache.tests.tier_files import put, sglang_file, sglang_tier, vllm_tier

import optistack_hicache
from optistack.errors import PlanRefusedError
from optistack.facts.node import GIB
from optistack.host import Host
from optistack.rules import RuleContext
from optistack.settings import KVLayout, Serving, Speculation, choose
from optistack.stack.spec import ParallelSection
from optistack_hicache.rules import RULES
from optistack_hicache.start import before_start, check_shm
from optistack_hicache.storage.ready import missing_package, trouble

CHOICES: dict[str, tuple[Any, ...]] = {
    "rope_theta": (10_000.0, 50_000.0),
    "quantized": (None, "fp8"),
    "dtype": ("bfloat16", "fp8_e4m3", "fp8_e5m2"),
    "page": (None, 32, 64),
    "scales": (None, "unit", "checkpoint"),
    "layout": ("page_first", "layer_first", "page_first_direct"),
    "tensor": (1, 2, 4),
    "attention_data": (1, 2),
    "draft": (None, "a/draft", "another/draft"),
    "draft_dtype": (None, "bfloat16"),
    "kernels": (None, "fa3", "flashinfer"),
    "backend": ("sglang", "vllm"),
    "version": ("0.5.21", "0.5.23", "0.33.0"),
    "tag": (None, "rope8"),
}
"""Everything that changes the bytes of a page, or what they mean."""

CONFIGURATIONS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()})


def key_of(make_bench: Any, one: dict[str, Any]) -> str:
    kv = KVLayout(
        dtype=choose(one["dtype"]),
        **{
            name: choose(one[word])
            for name, word in (("page_size_tokens", "page"), ("scales", "scales"), ("draft_dtype", "draft_dtype"))
            if one[word] is not None
        },
    )
    others: list[Any] = [kv]
    if one["draft"]:
        others.append(Speculation(draft_checkpoint=choose(one["draft"])))
    if one["kernels"]:
        others.append(Serving(attention_backend=choose(one["kernels"])))
    bench = make_bench(
        backend=one["backend"],
        version=one["version"],
        others=others,
        parallel=ParallelSection(tensor=one["tensor"], attention_data=min(one["attention_data"], one["tensor"])),
    )
    bench.target["rope_theta"] = one["rope_theta"]
    if one["quantized"]:
        bench.target["quantization_config"] = {"quant_method": one["quantized"], "activation_scheme": "dynamic"}
    options = {"storage": "file", "storage_dir": "/ssd", "layout": one["layout"], "storage_tag": one["tag"]}
    return str(bench.resolve(**options).tier(3).directory.value)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=CONFIGURATIONS, field=st.sampled_from(sorted(CHOICES)), pick=st.integers(0, 1))
def test_a_folder_is_read_under_one_setting_of_every_field_alone(
    make_bench: Any, one: dict[str, Any], field: str, pick: int
) -> None:
    one = {**one, "tensor": max(2, one["tensor"])}
    others = [value for value in CHOICES[field] if value != one[field] and not (field == "tensor" and value == 1)]
    other = {**one, field: others[pick % len(others)]}
    assert key_of(make_bench, one) == key_of(make_bench, one)
    assert key_of(make_bench, one) != key_of(make_bench, other)


def test_other_scales_in_a_file_of_the_same_name_are_another_folder(make_bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "scales.json"
    bench = make_bench(others=[KVLayout(dtype=choose("fp8_e4m3"), scales_file=choose(str(file)))])

    def folder() -> str:
        return str(bench.resolve(storage="file", storage_dir="/ssd").tier(3).directory.value)

    elsewhere = folder()
    file.write_text("1")
    here = folder()
    file.write_text("2")
    assert len({elsewhere, here, folder()}) == 3


class TestFolder:
    def test_a_folder_that_can_be_made_is_fine(self, tmp_path: Path) -> None:
        assert trouble(tmp_path / "not" / "yet", None) is None
        assert trouble(tmp_path, None) is None

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        file = put(tmp_path / "file")
        assert trouble(file, None) == f"{file} is a file"
        assert trouble(file / "below", None) == f"{file} is a file"

    def test_no_right_to_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.access", lambda *_: False)
        assert f"{tmp_path} may not be written" in str(trouble(tmp_path / "kv", None))

    def test_a_file_system_that_keeps_no_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.access", lambda *_: True)
        assert "the file system of /proc keeps no files" in str(trouble(Path("/proc/kv"), None))

    def test_a_quota_larger_than_the_disk(self, tmp_path: Path) -> None:
        assert "storage_quota_gib is 1048576" in str(trouble(tmp_path, 2**20 * GIB))
        assert trouble(tmp_path, 1) is None

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("optistack_hicache.storage.ready.FULL_BYTES", 2**80)
        assert "is full" in str(trouble(tmp_path, None))
        assert "is full" in str(trouble(tmp_path / "not" / "yet", None))
        put(tmp_path / "others.bin")
        assert "is full" in str(trouble(tmp_path, None))

    @pytest.mark.parametrize("tier", [sglang_tier, vllm_tier])
    def test_a_tier_that_filled_the_disk_itself_starts_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: Any
    ) -> None:
        monkeypatch.setattr("optistack_hicache.storage.ready.FULL_BYTES", 2**80)
        tier(tmp_path)
        assert trouble(tmp_path, None) is None

    def test_a_folder_that_this_user_may_not_reach(self, tmp_path: Path) -> None:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0)
        user = os.geteuid()
        if user == 0:  # who may reach all
            os.seteuid(65534)
        try:
            found = trouble(locked / "kv", None)
        finally:
            os.seteuid(user)
        assert found == f"{locked / 'kv'} may not be read by this user"

    def test_two_models_in_one_folder(self, tmp_path: Path) -> None:
        put(sglang_file(tmp_path, 1, model="one"))
        assert trouble(tmp_path, None) is None
        put(sglang_file(tmp_path, 1, model="two"))
        assert trouble(tmp_path, None) == f"{tmp_path} holds KV of one and of two"


class TestSharedMemory:
    """vLLM keeps the host tier in /dev/shm: always from 0.32 on, before that where files lie below it."""

    def start(self, bench: Any, monkeypatch: pytest.MonkeyPatch, *, size: int, free: int, **options: Any) -> None:
        room = SimpleNamespace(f_frsize=GIB, f_blocks=size, f_bavail=free)
        real = os.statvfs
        monkeypatch.setattr("os.statvfs", lambda path: room if path == "/dev/shm" else real(path))
        check_shm(bench.plan(**options))

    def test_a_start_is_refused_with_the_command_that_helps(
        self, make_bench: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = make_bench(backend="vllm")
        with pytest.raises(PlanRefusedError, match=r"takes 500\.0 GiB of /dev/shm, which has 400\.0\.") as refusal:
            self.start(bench, monkeypatch, size=400, free=400)
        assert "mount -o remount,size=501G /dev/shm" in str(refusal.value.fix)
        assert "vllm_offload" not in str(refusal.value.fix)
        with pytest.raises(PlanRefusedError, match=r"504\.0, of which 104\.0 are taken already") as refusal:
            self.start(bench, monkeypatch, size=504, free=400)
        assert "size=605G" in str(refusal.value.fix) and "/dev/shm/vllm_offload_*" in str(refusal.value.fix)
        with pytest.raises(PlanRefusedError, match=r"which has 500\.0\."):  # nothing is left for queues and NCCL
            self.start(bench, monkeypatch, size=500, free=500)
        self.start(bench, monkeypatch, size=504, free=504)

    def test_a_machine_without_it_is_told_so(self, make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("optistack_hicache.start.SHM", "/nowhere/shm")
        with pytest.raises(PlanRefusedError, match=r"/nowhere/shm, which cannot be used: No such file") as refusal:
            check_shm(make_bench(backend="vllm").plan())
        assert "tmpfs" in str(refusal.value.fix)

    def test_all_replicas_take_of_it(self, make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = make_bench(backend="vllm").plan(host_gib=40)
        monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_frsize=GIB, f_blocks=50, f_bavail=50))
        before_start(plan)
        with pytest.raises(PlanRefusedError, match=r"takes 80\.0 GiB"):
            before_start(plan.model_copy(update={"launches": plan.launches * 2}))

    @pytest.mark.parametrize(
        ("when", "options", "refused"),
        [
            ("always", {}, True),
            ("always", {"storage": "mooncake"}, True),
            ("always", {"storage": "lmcache"}, False),
            ("file", {}, False),
            ("file", {"storage": "mooncake"}, False),
            ("file", {"storage": "file", "storage_dir": "/ssd"}, True),
            (None, {}, False),
        ],
    )
    def test_only_a_tier_that_is_there_is_refused(
        self, make_bench: Any, monkeypatch: pytest.MonkeyPatch, when: str | None, options: Any, refused: bool
    ) -> None:
        bench = make_bench(backend="vllm", traits={"host_tier_shm": when})
        with pytest.raises(PlanRefusedError) if refused else nullcontext():
            self.start(bench, monkeypatch, size=1, free=1, host_gib=10, **options)


class TestRules:
    def rule(self, bench: Any, name: str, *, installed: bool = True, args: tuple[str, ...] = (), **options: Any) -> Any:
        stack = bench.resolve(**options)
        spec = bench.spec.model_copy(update={"engine_args": args, "plugins": {"hicache": options}})
        engine = bench.engine.model_copy(update={"installed": installed, "python": sys.executable})
        context = RuleContext(
            spec=spec,
            stack=stack,
            model=bench.model,
            node=bench.node,
            engine=engine,
            budget=bench.budget(stack),
            launch=bench._launch(),
        )
        found = next(rule for rule in RULES if rule.id == name)
        return found.fires(context)

    def test_the_folder_is_looked_at_on_the_machine_of_the_engine_alone(self, bench: Any, tmp_path: Path) -> None:
        file = put(tmp_path / "file")
        options = {"storage": "file", "storage_dir": str(file)}
        assert "is a file" in self.rule(bench, "hicache-storage-folder", **options)
        assert self.rule(bench, "hicache-storage-folder", installed=False, **options) is None
        good = {"storage": "file", "storage_dir": str(tmp_path / "kv")}
        assert self.rule(bench, "hicache-storage-folder", **good) is None

    def test_what_has_changed_since_the_plan_is_seen_before_the_start(self, bench: Any, tmp_path: Path) -> None:
        host = Host()
        plugin = host.register(optistack_hicache, name="hicache")
        folder = tmp_path / "kv"
        plan = bench.plan(storage="file", storage_dir=str(folder))  # for an engine that is not on this machine
        start = partial(host.call, plugin, "optistack_before_start", type(None), plan=plan)
        assert start() is None
        folder.write_text("")
        with pytest.raises(PlanRefusedError, match=f"cannot work here: .*{folder} is a file.*another folder"):
            start()
        plan = bench.plan(storage="mooncake")
        engine = plan.engine.model_copy(update={"installed": True, "python": sys.executable})
        with pytest.raises(PlanRefusedError, match="needs the package mooncake"):
            host.call(plugin, "optistack_before_start", type(None), plan=plan.model_copy(update={"engine": engine}))

    def test_a_backend_whose_package_is_not_installed(self, bench: Any) -> None:
        assert "needs the package mooncake" in self.rule(bench, "hicache-storage-package", storage="mooncake")
        assert self.rule(bench, "hicache-storage-package", storage="file", storage_dir="/ssd") is None
        assert self.rule(bench, "hicache-storage-package", installed=False, storage="mooncake") is None

    def test_a_package_that_is_there_is_fine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("optistack_hicache.storage.ready", fromlist=["x"]).PACKAGES, ("a", "b"), "json")
        assert missing_package("a", "b", sys.executable) is None
        assert missing_package("sglang", "mooncake", "/no/such/python") is None

    def test_flags_by_hand_that_change_bytes_need_a_tag(self, bench: Any) -> None:
        options = {"storage": "file", "storage_dir": "/ssd"}
        args = ("--json-model-override-args", '{"rope_theta": 1}')
        assert self.rule(bench, "hicache-storage-by-hand", args=args, **options) == "--json-model-override-args"
        assert self.rule(bench, "hicache-storage-by-hand", args=args, storage_tag="rope", **options) is None
        assert self.rule(bench, "hicache-storage-by-hand", args=("--log-level", "info"), **options) is None

    @pytest.mark.parametrize(
        ("word", "flag"),
        [
            ('--hf_overrides={"rope_theta": 1}', "--hf-overrides"),
            ("--hf-overrides.rope_theta=1", "--hf-overrides"),
            ("--quantization=fp8", "--quantization"),
            ("-q=fp8", "--quantization"),
            ("--load-format=dummy", "--load-format"),
        ],
    )
    def test_every_spelling_of_such_a_flag_needs_a_tag(self, make_bench: Any, word: str, flag: str) -> None:
        options = {"storage": "file", "storage_dir": "/ssd"}
        assert self.rule(make_bench(backend="vllm"), "hicache-storage-by-hand", args=(word,), **options) == flag

    def test_weights_that_are_made_up_need_a_tag_and_ways_to_load_the_same_ones_do_not(self, bench: Any) -> None:
        options = {"storage": "file", "storage_dir": "/ssd"}
        for word, says in (("dummy", "--load-format"), ("runai_streamer", None)):
            args = ("--load-format", word)
            assert self.rule(bench, "hicache-storage-by-hand", args=args, **options) == says

    def test_a_folder_named_by_a_config_alone_is_said(self, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {"storage": "file", "storage_dir": "/ssd"}
        rule = "hicache-storage-config-alone"
        assert self.rule(bench, rule, **options) == bench.model.source
        assert self.rule(bench, rule) is None
        assert self.rule(bench, rule, storage_tag="rev-2", **options) is None
        whole = bench.model.model_copy(update={"evidence": "headers"})
        monkeypatch.setattr(type(bench), "model", whole)
        assert self.rule(bench, rule, **options) is None

    @pytest.mark.parametrize(
        ("mla", "layout", "io_backend", "fires"),
        [
            (False, "page_head", "kernel", None),
            (False, "page_head", "direct", "with io_backend direct"),
            (True, "page_head", "kernel", "for an MLA model"),
            (False, "page_first_kv_split", "kernel", "Ascend"),
            (True, "layer_first", "direct", None),
            (True, "page_first", "kernel", None),
        ],
    )
    def test_layouts_that_sglang_takes_and_cannot_copy(
        self, make_bench: Any, gqa: dict[str, Any], mla: bool, layout: str, io_backend: str, fires: str | None
    ) -> None:
        bench = make_bench() if mla else make_bench(target=gqa)
        says = self.rule(bench, "hicache-sglang-copies", layout=layout, io_backend=io_backend)
        assert says is None if fires is None else fires in says

    @pytest.mark.parametrize(
        ("backend", "version", "fires"),
        [
            ("sglang", "0.5.21", True),
            ("sglang", "0.5.23", False),
            ("vllm", "0.26.0", True),
            ("vllm", "0.32.0", False),
        ],
    )
    def test_what_short_files_do(self, make_bench: Any, backend: str, version: str, fires: bool) -> None:
        bench = make_bench(backend=backend, version=version)
        assert self.rule(bench, "hicache-storage-damage", storage="file", storage_dir="/ssd") is fires
