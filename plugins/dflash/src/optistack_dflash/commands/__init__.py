"""``optistack dflash``."""

from optistack_dflash.commands import refreshing, serving, training, tuning
from optistack_dflash.commands.app import app

__all__ = ["app", "refreshing", "serving", "training", "tuning"]
