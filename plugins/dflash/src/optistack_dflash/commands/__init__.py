"""``optistack dflash``."""

from optistack_dflash.commands import converting, refreshing, serving, training, tuning
from optistack_dflash.commands.app import app

__all__ = ["app", "converting", "refreshing", "serving", "training", "tuning"]
