"""What the checkpoint and the node are, read from their files and drivers. Pure reading: no network, no torch."""

from optistack.facts.checkpoint import load_model
from optistack.facts.model import Attention, Component, ComponentName, ModelFacts, MoE, Quantization
from optistack.facts.node import Gpu, NodeFacts, ReplicaShare, load_node

__all__ = [
    "Attention",
    "Component",
    "ComponentName",
    "Gpu",
    "MoE",
    "ModelFacts",
    "NodeFacts",
    "Quantization",
    "ReplicaShare",
    "load_model",
    "load_node",
]
