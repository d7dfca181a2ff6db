"""``python -m fuser`` is the command ``mufuser``."""

from __future__ import annotations

import sys

from fuser import loading


def main() -> int:
    """The command; Ctrl-C while it is loaded ends it at once."""
    loading.quietly()
    from fuser.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
