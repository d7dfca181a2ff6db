"""The shell is data: a table from verb to the function that carries it out; a verb's module is imported only when it is called.

A verb is a function with typer annotations: its docstring is the help, it raises :class:`~fuser.errors.FuserError` for
what a user can cause, and returns None or an exit code. Documents go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import re
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.interrupts import CLOSED
from fuser.interrupts import as_process
from fuser.interrupts import said


@dataclass(frozen=True)
class Verb:
    """``target`` is ``module:function``; ``help`` is the line of the overview."""

    target: str
    help: str


VERBS: dict[str, Verb] = {
    "optimize": Verb("tvm_bridge.commands:optimize", "choose, compile, run kernels of a model (.pt2, .onnx, Relay)"),
    "package": Verb("tvm_bridge.package_commands:package", "a library of optimize --runtime relax with all that runs it"),
    "tune": Verb("search.tune_commands:tune", "choose schedules for named workloads and lower the winners"),
    "records": Verb("search.records_commands:records", "measurements: list, show, why, merge, prune, export, import"),
    "space": Verb("search.commands:space", "show the pruning funnel of a schedule space"),
    "explain": Verb("search.explain_commands:explain", "why a workload's winner, a model's plan, or one of its kernels"),
    "why-not": Verb("search.why_commands:why_not", "which rule forbids a schedule, or why it loses"),
    "superoptimize": Verb("fuser.superopt.commands:superoptimize", "search for verified µGraphs of a program"),
    "show": Verb("search.show_commands:show", "print or draw a µGraph, its layouts, its instructions"),
    "verify": Verb("search.verify_commands:verify", "a µGraph against a program, or a report's kernels again"),
    "bench": Verb("experiments.bench:bench", "measure named workloads beside what a user would pick instead"),
    "calibrate": Verb("search.calibrate_commands:calibrate", "fit the cost model to the GPU at hand: a device file"),
    "devices": Verb("fuser.commands:devices", "list the GPUs whose limits and rates are known"),
}

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (0, "ok"),
    (2, "usage"),
    (3, "a model file cannot be read"),
    (4, "nothing in the model is supported"),
    (5, "no valid kernel"),
    (6, "something is missing on this machine"),
    (130, "interrupted"),
    (141, "nobody reads what is printed"),
    (143, "terminated"),
)

UNPRINTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""How the operating system says that a file takes no more."""

EXTRAS: dict[str, str] = {
    "tvm": "pip install 'mufuser[relay]' (TVM 0.19 with Relay)",
    "torch": "pip install 'mufuser[torch]'",
    "onnx": "pip install 'mufuser[onnx]'",
    "transformers": "pip install transformers",
    "triton": "pip install mufuser on Linux: Triton has no other wheels",
    "distributed": "pip install 'mufuser[dask]'",
    "matplotlib": "pip install 'mufuser[plot]'",
    "scipy": "pip install scipy",
}
"""How to get a package that a verb may need."""
OWN = ("fuser", "cost_model", "search", "tvm_bridge", "experiments")
"""Packages in which a name that cannot be imported is a mistake of ours."""


def overview(verbs: Mapping[str, Verb] = VERBS) -> str:
    """The text of ``mufuser --help``."""
    width = max(map(len, verbs))
    lines = ["usage: mufuser VERB [ARGUMENTS]", "       mufuser VERB --help | --version", "", "verbs:"]
    lines += [f"  {name:<{width}}  {verb.help}" for name, verb in verbs.items()]
    lines += ["", "With --json a verb prints one JSON document on stdout; progress goes to stderr.", "", "exit codes:"]
    return "\n".join(lines + [f"  {code:>3}  {what}" for code, what in EXIT_CODES])


def flowed(text: str) -> str:
    """Paragraphs without the line breaks of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def load(verb: Verb) -> Callable[..., Any]:
    """The function of a verb; imports its module."""
    module, _, name = verb.target.partition(":")
    return getattr(import_module(module), name)


def call(name: str, verb: Verb, args: Sequence[str]) -> int:
    """Parse ``args`` by the annotations of the verb's function and call it; returns the exit code."""
    import typer

    if "--help" in args:
        from typer import rich_utils  # draws help alone

        rich_utils.RANGE_STRING = ""  # at 80 columns bounds would take half of the help; who exceeds one is told
    function = load(verb)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, help=flowed(inspect.getdoc(function) or verb.help))(function)
    command = typer.main.get_command(app)
    for i, a in enumerate(args):
        if not a or re.fullmatch(r"--?[\w-]+=", a):
            of = f"the value of {a.rstrip('=') or args[i - 1]}" if a or (i and args[i - 1].startswith("-")) else "an argument"
            raise UsageError(f"{of} is empty", "leave it out; is a variable of the shell not set?")
    words = [f" {a}" if a.startswith("- ") else a for a in args]  # a dash and a blank begin a schedule, and no option
    try:
        with command.make_context(f"mufuser {name}", words) as context:  # its main() would swallow KeyboardInterrupt
            result = command.invoke(context)
    except typer.Exit as e:
        return e.exit_code
    except SystemExit:
        if "--help" in args:  # rich says so that nobody reads the help
            return CLOSED
        raise
    except typer.Abort:
        return 130
    except typer.TyperException as e:
        raise UsageError(e.format_message(), f"see mufuser {name} --help") from None
    return result if isinstance(result, int) else 0


def run(args: Sequence[str], verbs: Mapping[str, Verb] = VERBS) -> int:
    """Carry out one command line; raises what the verb raises."""
    if not args or args[0] in ("--help", "-h", "help"):
        print(overview(verbs))
        return 0 if args else 2
    if args[0] in ("--version", "-V"):
        from fuser import __version__

        print(f"mufuser {__version__}")
        return 0
    name, *rest = args
    if name not in verbs:
        close = difflib.get_close_matches(name, verbs, n=1)
        raise UsageError(f"there is no verb {name!r}", f"did you mean {close[0]}?" if close else "mufuser --help lists the verbs")
    try:
        return call(name, verbs[name], rest)
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise EnvironmentError_(f"mufuser {name} needs the package {package}, which is not installed", EXTRAS[package]) from e
    except ImportError as e:  # a library that it links to is missing, or there is no memory for it
        if (e.name or "").partition(".")[0] in OWN:
            raise
        what = f"a package that mufuser {name} needs cannot be loaded: {first_line(e)}"
        raise EnvironmentError_(what, "install it again, with what it links to; is there memory enough?") from e


def main(argv: Sequence[str] | None = None, verbs: Mapping[str, Verb] = VERBS) -> int:
    """Entry point of ``mufuser``: errors to stderr (with ``--json`` also as a document on stdout), exit code returned.

    Without ``argv`` the command is all that this process does, and signals and closed pipes end it as a command.
    """
    if argv is None:
        return script(lambda: run(sys.argv[1:], verbs), "--json" in sys.argv)
    try:
        return reported(lambda: run(argv, verbs), "--json" in argv)
    except KeyboardInterrupt as error:
        return said(error)


def script(command: Callable[[], int | None], json: bool = False) -> int:
    """Carry out a command that is all that this process does: errors reported, signals and closed pipes as for every verb."""
    return as_process(lambda: reported(command, json))


def reported(command: Callable[[], int | None], json: bool = False) -> int:
    """Carry out a command and report its error, if it has one; returns the exit code."""
    try:
        return command() or 0
    except FuserError as e:
        return failed(e, json)
    except BrokenPipeError:  # nobody reads what is printed any more
        raise
    except OSError as e:
        if not e.filename and e.errno in UNPRINTED:  # a plain print, of a help text say
            from fuser.console import unprinted

            return failed(unprinted(e), json)
        where = f"{e.filename}: " if e.filename else ""
        return failed(EnvironmentError_(f"{where}{e.strerror or e}", "the command cannot go on without it"), json)
    except MemoryError:
        return failed(EnvironmentError_("there is not enough memory", "give the process more, or smaller inputs"), json)


def failed(e: FuserError, json: bool) -> int:
    """Report an error; returns its exit code."""
    from fuser.console import error_document
    from fuser.console import print_json
    from fuser.console import render_error

    for say in (lambda: render_error(e), *((lambda: print_json(error_document(e)),) if json else ())):
        try:
            say()
        except BrokenPipeError:
            raise
        except (OSError, FuserError):  # what keeps an error from being said, a full disk say, says no more than the exit code
            continue
    return e.exit_code
