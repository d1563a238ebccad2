"""`python -m triptych`, the same as `triptych`."""

from triptych.cli import main

if __name__ == "__main__":
    main()
