"""``python -m tvbo``."""

from tvbo.cli import main

if __name__ == "__main__":
    main()
