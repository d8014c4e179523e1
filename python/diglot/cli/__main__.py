"""`python -m diglot.cli`."""

from diglot.cli import main

main()
