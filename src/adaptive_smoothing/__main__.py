"""`python -m adaptive_smoothing` and the command `adaptive-smoothing`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is being imported ends the command without a traceback."""
    from adaptive_smoothing.cli import INTERRUPTED

    try:
        from adaptive_smoothing.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
