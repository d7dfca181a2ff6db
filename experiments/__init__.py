from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"]:  # python -m experiments.…: Python is loading a command
    from fuser import loading

    loading.quietly()
