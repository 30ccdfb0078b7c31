"""Makes `python -m cdc` the same as the command `tailrace`."""

import sys

from cdc.cli import main

if __name__ == "__main__":
    sys.exit(main())
