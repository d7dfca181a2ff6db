"""Sessions: ``lint``, ``tests`` (TVM 0.19 with Relay) and ``relax`` (TVM 0.27); on request ``slow`` and ``newest``.

Both TVMs install ``tvm``: one environment each.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

import nox

nox.options.sessions = ["lint", "tests", "relax"]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

ENVIRONMENT = {
    "TOPHUB_LOCATION": "NONE",  # TVM would look for tuning logs on the network
    "PYTHONDONTWRITEBYTECODE": "",  # where that is set, each of the processes that tests start would compile all sources again
}
PARALLEL = ["-n", "2", "--dist", "worksteal"]  # a process gets whole files, so that each fixture of a file is made once


@nox.session
def lint(session: nox.Session) -> None:
    """Style, types and the contract of the layers. Large packages that it can do without are not installed."""
    project = nox.project.load_toml("pyproject.toml")
    extras = project["project"]["optional-dependencies"]
    session.install(*extras["lint"], *extras["test"], "numpy<2.5", "platformdirs", "rich", "typer", "nox")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("pyright", "--threads", "2")


@nox.session
def relax(session: nox.Session) -> None:
    """Tests that need Relax: libraries for TVM's virtual machine, run on a GPU in the memory of the host."""
    session.install("--no-compile", "-e", ".[relax,torch,test]")
    session.run("pytest", "-q", "-m", "relax", *(session.posargs or ["-n", "2", "tests/tvm_bridge"]), env=ENVIRONMENT)


@nox.session
def tests(session: nox.Session) -> None:
    """Tests that are not slow, with Relay, torch and the model packages; the GPU's are skipped where there is none."""
    session.install("--no-compile", "-e", ".[relay,torch,onnx,models,plot,dask,test]")  # a fifth of it is imported
    args = session.posargs or PARALLEL
    with TemporaryDirectory() as cache:  # what an earlier run kept must not decide whether this one passes
        session.run("pytest", "-m", "not relax and not slow", *args, env=ENVIRONMENT | {"MUFUSER_CACHE": cache})


@nox.session
def slow(session: nox.Session) -> None:
    """The tests that take more than about ten seconds each: half an hour. Not run by default."""
    session.install("-e", ".[relay,torch,onnx,models,plot,dask,test]")
    session.run("pytest", "-m", "slow and not relax", *(session.posargs or PARALLEL), env=ENVIRONMENT)


@nox.session
def newest(session: nox.Session) -> None:
    """The tests that need no TVM with the newest Triton that we allow; the one with Relay is held at 3.6. Not run by default."""
    session.install("-e", ".[torch,models,test]")
    session.run("pytest", "-m", "not relax and not relay", *(session.posargs or PARALLEL))
