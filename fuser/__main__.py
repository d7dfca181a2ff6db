"""``python -m fuser`` is the command ``mufuser``."""

from __future__ import annotations

import sys

from fuser.cli import main

if __name__ == "__main__":
    sys.exit(main())
