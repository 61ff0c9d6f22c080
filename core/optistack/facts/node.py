"""What a node is: its GPUs, its memory, and how it is divided among replicas."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from optistack.errors import InputError, PlanRefusedError

GIB = 1024**3
MIB = 1024**2

Isa = Literal["amx", "avx512", "avx2", "other"]


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(_Fact):
    """One GPU model.

    ``kind``          ``b200``, ``h200``, ...; the lower-cased name where it is none of the known ones
    ``name``          as the driver prints it
    ``sm``            compute capability without the dot: 90 for Hopper, 100 for B200, 103 for B300
    ``hbm_bytes``     memory as the driver reports it (``nvidia-smi``, memory.total)
    ``cuda_bytes``    memory as CUDA reports it to an engine (``cudaMemGetInfo``), a little less, since the driver keeps
                      some; memory fractions of both engines are of this. None where it is not known
    ``sold_gb``       the size it is sold with, in 1e9 bytes, for gross arithmetic. None where it is not known
    """

    kind: str
    name: str
    sm: int
    hbm_bytes: int
    cuda_bytes: int | None = None
    sold_gb: float | None = None
    hbm_bandwidth_bytes_s: int | None = None


class NodeFacts(_Fact):
    """One host, or the part of it that may be used.

    ``gpus``          how many GPUs; 0 on a CPU node
    ``nvlink_domain`` how many of them reach each other over NVLink
    ``cpus``          logical CPUs
    ``cpu_isa``       the widest instructions that they have of those that engines' CPU kernels ask for, ``other`` for
                      none of them. None where it is not known: on a preset
    """

    name: str
    device: Literal["cuda", "cpu"]
    gpus: int = Field(ge=0)
    gpu: Gpu | None = None
    nvlink_domain: int = 0
    host_ram_bytes: int = Field(gt=0)
    cpus: int = Field(gt=0)
    cpu_isa: Isa | None = None

    @property
    def sm(self) -> int:
        """Compute capability without the dot; 0 on a CPU node."""
        return self.gpu.sm if self.gpu else 0

    @property
    def hbm_bytes(self) -> int:
        """Driver-reported memory of one GPU; 0 on a CPU node."""
        return self.gpu.hbm_bytes if self.gpu else 0

    def split(self, replicas: int, tensor_parallel: int) -> tuple[ReplicaShare, ...]:
        """Give each of ``replicas`` its GPUs (``tensor_parallel`` of them, consecutive), host RAM and CPUs.

        Consecutive GPUs, because hosts hang GPUs 0 to 3 on one CPU socket and 4 to 7 on the other. Host RAM and CPUs
        are divided by the number of replicas. PlanRefusedError, with the numbers, if they do not fit.
        """
        if replicas < 1 or tensor_parallel < 1:
            raise InputError(
                f"{replicas} replicas of tensor parallel {tensor_parallel} is no layout.", fix="Both are at least 1."
            )
        wanted = replicas * tensor_parallel
        what = f"{replicas} replica{'s' if replicas > 1 else ''} of tensor parallel {tensor_parallel}"
        if self.device == "cuda" and wanted > self.gpus:
            raise PlanRefusedError(
                f"{what} need {wanted} GPUs, and node {self.name} has {self.gpus}.",
                fix="Lower parallel.replicas or parallel.tensor, or use a larger node.",
            )
        if self.device == "cpu" and wanted > self.cpus:
            raise PlanRefusedError(
                f"{what} need at least {wanted} CPUs, and node {self.name} has {self.cpus}.",
                fix="Lower parallel.replicas or parallel.tensor.",
            )
        return tuple(self._share(index, replicas, tensor_parallel) for index in range(replicas))

    def _share(self, index: int, replicas: int, tensor_parallel: int) -> ReplicaShare:
        on_gpus = self.device == "cuda"
        first = index * tensor_parallel
        part = self.model_copy(
            update={
                "gpus": tensor_parallel if on_gpus else 0,
                "nvlink_domain": min(self.nvlink_domain, tensor_parallel) if on_gpus else 0,
                "host_ram_bytes": self.host_ram_bytes // replicas,
                "cpus": max(1, self.cpus // replicas),
            }
        )
        indices = tuple(range(first, first + tensor_parallel)) if on_gpus else ()
        return ReplicaShare(index=index, gpus=indices, node=part)


class ReplicaShare(_Fact):
    """What one replica gets: its GPUs by index, and ``node``, the part of the host that is its own."""

    index: int
    gpus: tuple[int, ...]
    node: NodeFacts


NodeFacts.model_rebuild()


def load_node(word: str) -> NodeFacts:
    """The node called ``word``: a preset ``<kind>x<count>``, ``cpu`` (this machine without its GPUs), or ``detect``.

    Fewer than eight GPUs get that share of an eight-GPU host's RAM and CPUs. InputError, with the nearest name, for
    any other word.
    """
    from optistack.facts import detect, presets

    if word == "detect":
        return detect.detect_node()
    return detect.detect_cpu() if word == "cpu" else presets.preset(word)
