"""``python -m vmmcache`` is the command ``vmmcache``."""

from vmmcache.cli import main

if __name__ == "__main__":
    main()
