"""`python -m penstock` is the `penstock` command."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory, of which the command imports nothing by itself

from penstock.interfaces.cli.main import main

main()
