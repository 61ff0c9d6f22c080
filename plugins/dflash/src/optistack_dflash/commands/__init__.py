"""``optistack dflash``."""

from optistack_dflash.commands import serving, training, tuning
from optistack_dflash.commands.app import app

__all__ = ["app", "serving", "training", "tuning"]
