"""`python -m payments`, which `./dev payments` calls."""

import sys

from payments.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
