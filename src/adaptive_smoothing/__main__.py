"""`python -m adaptive_smoothing`: the command line, also where scripts are not on the path."""

from adaptive_smoothing.cli.main import main

if __name__ == "__main__":
    main()
