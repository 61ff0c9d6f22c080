"""``optistack quant-nvfp4``."""

from optistack_quant_nvfp4.commands import convert, inspect, verify
from optistack_quant_nvfp4.commands.app import app

__all__ = ["app", "convert", "inspect", "verify"]
