"""`python -m diglot`: the command line, in a process that has not imported this package yet."""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "diglot_cli", *sys.argv[1:]])
