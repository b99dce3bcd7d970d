"""``python -m experiments.data``."""

from experiments.data.command import main

main()
