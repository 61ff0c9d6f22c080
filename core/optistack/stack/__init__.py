"""The stack file."""

from optistack.stack.spec import (
    EngineSection,
    ModelSection,
    ParallelSection,
    ServingSection,
    StackSpec,
    WorkloadSection,
)

__all__ = ["EngineSection", "ModelSection", "ParallelSection", "ServingSection", "StackSpec", "WorkloadSection"]
