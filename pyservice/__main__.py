"""Entry point of `python -m pyservice`, which does the same as the command `pyservice`."""

from pyservice.cli import main

if __name__ == "__main__":
    main()
