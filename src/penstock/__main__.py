"""`python -m penstock` is the `penstock` command."""

from penstock.interfaces.cli.main import main

main()
