"""What a plugin says about itself."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

HOOK_API = 1
"""Version of the hook contract. A plugin written for another one is listed with an error and not used."""


class Domain(StrEnum):
    """The domains, in the order in which they are settled: each sees the settings of those before it."""

    QUANTIZATION = "quantization"
    KV = "kv"
    SPECULATION = "speculation"
    CACHE = "cache"
    ROUTING = "routing"
    OTHER = "other"


class NoOptions(BaseModel):
    """Options of a plugin that has none."""

    model_config = ConfigDict(extra="forbid")


class PluginInfo(BaseModel):
    """The answer to ``optistack_plugin()``.

    ``name``     equal to the entry point's name and to the distribution's suffix (``kv-fp8``)
    ``domain``   what it is mainly about; it may implement the hooks of other domains too
    ``options``  a pydantic model of its options in the stack file; forbid extra keys, describe every field. They are
                 read strictly (:meth:`read`): declare lists as ``list``, words as ``Literal`` and paths as ``str``
    ``before``, ``after``  names of plugins, installed or not, between which this one is called
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    domain: Domain
    version: str
    summary: str
    hook_api: int = HOOK_API
    options: type[BaseModel] = NoOptions
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def read(self, given: dict[str, Any]) -> BaseModel:
        """``given`` as an instance of ``options``. Raises pydantic's ValidationError.

        Strictly, like the stack file's own sections: ``true`` is not the number 1, nor ``"8"`` the number 8.
        """
        return self.options.model_validate(given, strict=True)
