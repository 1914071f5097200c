"""`python -m oncekey` is the command `oncekey`."""

import sys

from oncekey.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
