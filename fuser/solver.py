"""Integer programs of PuLP solved by HiGHS, without a word on the user's terminal."""

from __future__ import annotations

import functools
from typing import Any


def solve(problem: Any, **options: Any) -> None:
    """Solve a ``pulp.LpProblem`` in one thread, with options of ``pulp.HiGHS``; its status says how that went."""
    import pulp

    _without_a_banner()
    problem.solve(pulp.HiGHS(msg=False, threads=1, **options))


@functools.cache
def _without_a_banner() -> None:
    """HiGHS says its name as soon as it is asked for anything: from highspy 1.14 on that is while PuLP makes one, before it can
    ask for silence."""
    from pulp.apis import highs_api

    solver: Any = getattr(getattr(highs_api, "highspy", None), "Highs", None)
    enable = getattr(solver, "enableCallbacks", None)
    if enable is None:
        return

    @functools.wraps(enable)
    def silently(self: Any) -> Any:
        self.setOptionValue("output_flag", False)
        found = enable(self)
        self.setOptionValue("output_flag", True)
        return found

    solver.enableCallbacks = silently
