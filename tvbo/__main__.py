"""``python -m tvbo``."""

from tvbo.cli import main

main()
