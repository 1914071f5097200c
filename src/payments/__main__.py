"""`python -m payments`, which `./dev payments` calls."""

import os
import sys

from payments.cli import main

if __name__ == "__main__":
    os.umask(0o077)  # its files hold accounts, and what was bought: they are for their owner alone
    sys.exit(main(sys.argv[1:]))
