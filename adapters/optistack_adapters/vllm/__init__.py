"""The vLLM adapter. ``backend`` is what the entry point loads; everything heavier is imported when it is used."""

from optistack_adapters.vllm.backend import VllmBackend

backend = VllmBackend()

__all__ = ["VllmBackend", "backend"]
