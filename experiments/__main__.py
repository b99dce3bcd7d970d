"""``python -m experiments``."""

from experiments.command import main

main()
