"""Integer programs are solved, and nothing is said."""

from __future__ import annotations

import subprocess
import sys

import pulp
import pytest

from fuser.solver import solve

SAYS = """
import pulp
from fuser.solver import solve
p = pulp.LpProblem("p", pulp.LpMinimize)
x = p.add_variable("x", 0, 9, "Integer")
p += x
p += 2 * x >= 7
for _ in range(2):
    solve(p)
print(x.value(), flush=True)
"""


@pytest.mark.parametrize(("most", "status"), [(9, pulp.LpStatusOptimal), (3, pulp.LpStatusInfeasible)])
def test_the_least_is_found_or_there_is_none(most: int, status: int) -> None:
    problem = pulp.LpProblem("p", pulp.LpMinimize)
    x = problem.add_variable("x", 0, most, "Integer")
    problem += x
    problem += 2 * x >= 7
    solve(problem)
    assert problem.status == status
    assert status != pulp.LpStatusOptimal or x.value() == 4


def test_the_solver_is_silent() -> None:
    ran = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("4.0\n", "")
