"""Ends the process where it cannot work, as a script does."""

import sys

sys.exit("acme needs Python 4")
