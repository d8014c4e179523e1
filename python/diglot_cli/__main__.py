"""`python -m diglot_cli`."""

from diglot_cli import main

main()
