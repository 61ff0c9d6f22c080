"""A GPU for vLLM's configuration to see where there is none, and stand-ins for what its CUDA build would bring.

Nothing here computes anything. The platform answers what vLLM asks a driver (capability, memory, links); modules that
only a CUDA build has (kernels, FlashInfer) exist, so that vLLM's own checks of what they take can be asked; the few
operators that are called while modules load, to ask whether a kernel is there, say yes. A real module always wins over
its stand-in.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, Iterator, Sequence  # noqa: UP035 (Python 3.9)

PACKAGES = ("flashinfer", "flashinfer_cubin", "tokenspeed_mla")
"""What the CUDA wheel requires, beside torch (its metadata: Requires-Dist)."""

LIBRARIES = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.flashmla",
    "vllm.third_party.flashmla.flash_mla_interface",
)
"""Modules of the CUDA wheel that the CPU one lacks: compiled, or beside something compiled."""

_AT_ONCE = LIBRARIES[:4]
"""Imported by name as vLLM loads; the others are found when they are asked for."""

PLATFORM = "optistack_gpu"


class _Anything(type):
    """Classes that have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


def _stand_in(name: str) -> Any:
    return _Anything(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on ``sys.meta_path``: asked only for what nothing else has found."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        root = name.partition(".")[0]
        if root not in PACKAGES and name not in LIBRARIES:
            return None
        self.used.add(root if root in PACKAGES else name)
        return importlib.machinery.ModuleSpec(name, self, is_package=root in PACKAGES or name.endswith(".flashmla"))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(gpu: dict[str, Any]) -> _Finder:
    """Make vLLM see ``gpus`` GPUs of ``name``, ``sm`` (10 x major + minor) and ``memory_bytes``, fully linked.

    To be called before anything of vLLM but ``vllm.platforms`` is imported: other modules ask for the platform while
    they load. The returned finder's ``used`` are the stand-ins that took effect.
    """
    finder = _Finder()
    sys.meta_path.append(finder)
    for name in _AT_ONCE:
        # Loading a real one fails where the CUDA libraries are not there; then a stand-in takes its place.
        try:
            importlib.import_module(name)
        except (ImportError, OSError):
            sys.modules[name] = _Module(name)
            finder.used.add(name)
    platforms = importlib.import_module("vllm.platforms")
    home = types.ModuleType(PLATFORM)
    sys.modules[PLATFORM] = home

    def resolve() -> str:
        # Inside vLLM's own lazy resolution, as for a platform that a plugin brings.
        setattr(home, "Gpu", _platform(gpu))  # noqa: B010
        return PLATFORM + ".Gpu"

    setattr(platforms, "resolve_current_platform_cls_qualname", resolve)  # noqa: B010
    setattr(platforms, "vllm_version_matches_substr", lambda word: False)  # noqa: B010
    _have_triton()
    _complete_operators()
    return finder


def _platform(gpu: dict[str, Any]) -> type:
    cuda = importlib.import_module("vllm.platforms.cuda")
    interface = importlib.import_module("vllm.platforms.interface")
    capability = interface.DeviceCapability(gpu["sm"] // 10, gpu["sm"] % 10)
    return type(
        "Gpu",
        (cuda.CudaPlatformBase,),
        {
            "get_device_capability": classmethod(lambda cls, device_id=0: capability),
            "get_device_name": classmethod(lambda cls, device_id=0: gpu["name"]),
            "get_device_total_memory": classmethod(lambda cls, device_id=0: gpu["memory_bytes"]),
            "get_device_uuid": classmethod(lambda cls, device_id=0: f"GPU-{device_id}"),
            "is_fully_connected": classmethod(lambda cls, device_ids: True),
            "device_count": classmethod(lambda cls: gpu["gpus"]),
            "num_compute_units": classmethod(lambda cls, device_id=0: gpu["compute_units"]),
            "is_integrated_gpu": classmethod(lambda cls, device_id=0: False),
            "is_cumem_allocator_available": lambda self: True,
            "get_cuda_runtime_major": classmethod(lambda cls: 13),
        },
    )


def _complete_operators() -> None:
    """``torch.ops._C.cutlass_scaled_mm_supports_block_fp8`` and its like are called as modules load, and say yes;
    others are only named."""
    torch = importlib.import_module("torch")
    namespace = type(torch.ops._C)
    real = namespace.__getattr__
    queries_alone = True

    def lookup(self: Any, name: str) -> Any:
        try:
            return real(self, name)
        except AttributeError:
            if self.name not in ("_C", "_moe_C", "_C_cache_ops") or name.startswith("__"):
                raise
            if "support" in name:
                return lambda *args: True
            if queries_alone:
                raise
            return _stand_in(name)

    namespace.__getattr__ = lookup
    # This one describes operators to torch if they are there, and torch has to know those that it describes.
    importlib.import_module("vllm._custom_ops")
    queries_alone = False


def _have_triton() -> None:
    """The CUDA build requires Triton and takes its V2 model runner for it; a CPU environment may lack it."""
    utils = importlib.import_module("vllm.triton_utils")
    for module in (utils, importlib.import_module("vllm.triton_utils.importing")):
        setattr(module, "HAS_TRITON", True)  # noqa: B010


def complete_flash_attention() -> None:
    """The CPU build leaves FlashAttention 4's Python files out, by which vLLM tells whether it is there."""
    with contextlib.suppress(ImportError):
        interface = importlib.import_module("vllm.vllm_flash_attn.flash_attn_interface")
        for name in ("FA2_AVAILABLE", "FA3_AVAILABLE", "FA4_AVAILABLE"):
            if hasattr(interface, name):
                setattr(interface, name, True)


@contextlib.contextmanager
def without_device_memory() -> Iterator[None]:
    """Modules that take workspace on the GPU as they load get a tensor without memory."""
    torch = importlib.import_module("torch")
    names: Sequence[str] = ("empty", "zeros", "ones", "full")
    kept = {name: getattr(torch, name) for name in names}

    def elsewhere(make: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "meta"
                kwargs.pop("pin_memory", None)
            return make(*args, **kwargs)

        return made

    for name in names:
        setattr(torch, name, elsewhere(kept[name]))
    try:
        yield
    finally:
        for name in names:
            setattr(torch, name, kept[name])
