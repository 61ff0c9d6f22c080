"""``python -m optistack.cli``."""

from optistack.cli import main

main()
