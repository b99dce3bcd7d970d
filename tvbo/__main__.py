"""``python -m tvbo``."""

import gc


def main() -> None:
    """Run the command line."""
    # What is imported stays, so that collecting garbage meanwhile only takes time: a fifth of a
    # second, as much as a command that reads a run takes.
    gc.disable()
    from tvbo.cli import main as run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
