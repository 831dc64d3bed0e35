"""The command line as `python -m adaptive_smoothing`, for environments whose scripts are not on the path."""

from adaptive_smoothing.cli.main import main

if __name__ == "__main__":
    main()
