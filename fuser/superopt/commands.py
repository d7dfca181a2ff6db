"""The superoptimizer's commands: find structures, verify one against a program."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from fuser.arguments import Json
from fuser.arguments import seconds
from fuser.console import note
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import print_text
from fuser.errors import ModelFileError
from fuser.errors import NoValidKernelError
from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.files import file_stem
from fuser.files import read_json
from fuser.files import shown
from fuser.frontends.mirage_json import mirage_graphs
from fuser.interrupts import Terminated
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.serialize import graph_from_json
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.generate.generator import Limits
from fuser.superopt.generate.signature import signature
from fuser.superopt.generate.thread_fusion import thread_graphs
from fuser.superopt.search import STOPPED
from fuser.superopt.search import Found
from fuser.superopt.search import Result
from fuser.superopt.search import superoptimize_pieces
from fuser.superopt.verify.verdicts import verdict_document
from fuser.superopt.verify.verifier import verify as verify_graph
from fuser.workloads import match
from fuser.workloads import workload


def superoptimize(
    names: Annotated[
        list[str], typer.Argument(metavar="WORKLOAD|FILE...", help="Named workloads, globs of them, or programs as JSON.")
    ],
    max_block_ops: Annotated[
        int, typer.Option("--max-block-ops", min=1, metavar="N", help="Most operators of one kernel; a composite is one.")
    ] = 7,
    max_kernels: Annotated[int, typer.Option("--max-kernels", min=1, metavar="N", help="Most kernels of a graph.")] = 5,
    budget: Annotated[float, seconds("--budget", "Seconds for each program.")] = 60.0,
    most: Annotated[int, typer.Option("--most", min=1, metavar="N", help="Structures to verify and keep for each program.")] = 50,
    processes: Annotated[int, typer.Option("--processes", min=1, max=1024, metavar="N", help="Processes that verify.")] = 2,
    save: Annotated[str | None, typer.Option("--save", help="Directory for the µGraphs as JSON files.")] = None,
    json: Json = False,
) -> None:
    """Search for µGraphs that compute the same as a program, verified; tile sizes are left to the schedule search."""
    if save:
        make_folder(save)
    limits = Limits(kernels=max_kernels, block_ops=max_block_ops, budget=budget)
    documents: list[dict[str, Any]] = []
    found, stop = 0, None
    for program in [p for n in names for p in programs(n)]:
        note(f"searching {program.name}")
        try:
            pieces = superoptimize_pieces(program, limits, processes=processes, most=most)
        except KeyboardInterrupt as error:
            stop = error
            break
        for piece, result in pieces:
            if result is None:
                documents.append({"program": piece.program.name, "left_alone": piece.why})
                if not json:
                    note(f"{piece.program.name} is left alone: {piece.why}")
                continue
            found += len(result.structures)
            if save:
                _save(Path(save), result)
            if json:
                documents.append(document(result))
            else:
                _print(result)
            if result.stopped in STOPPED:
                stop = Terminated() if result.stopped == "terminated" else KeyboardInterrupt()
        if stop:
            break
    if json and (documents or not stop):
        print_json({"searches": documents})
    if stop:
        raise stop
    if not found:
        raise NoValidKernelError("no structure was found", "raise --max-block-ops or --budget")


def document(result: Result) -> dict[str, Any]:
    """A search as a document: what was tried, and every structure with its evidence."""
    return {
        "program": result.program.name,
        "stopped": result.stopped,
        "seconds": round(result.seconds, 3),
        "applications": {
            "tried": result.report.counts.tried,
            "pruned": result.report.counts.pruned,
            "evaluated": result.report.counts.evaluated,
            "values": result.report.counts.values,
        },
        "operator_graphs": result.report.op_graphs,
        "kernel_graphs": result.report.kernel_graphs,
        "rejected": [why for _, why in result.rejected],
        "unknown": [why for _, why in result.unknown],
        "structures": [_structure(f) for f in result.structures],
    }


def _structure(found: Found) -> dict[str, Any]:
    return {
        "signature": signature(found.graph).text.splitlines(),
        "passes": found.cost[0],
        "operators": found.cost[1],
        "splits": [s for s in found.splits if s],
        "verdict": found.verdict.kind,
        "says": str(found.verdict),
        "bare_exponentials": list(found.bare),
        "graph": found.graph.to_json(),
    }


def _print(result: Result) -> None:
    rows = []
    for i, f in enumerate(result.structures):
        splits = ",".join(s for s in f.splits if s) or "-"
        last = signature(f.graph).kernels[-1].stores[0]
        rows.append((i, len(f.graph.kernels), splits, f.cost[0], f.cost[1], f.verdict.kind, last))
    counts = result.report.counts
    notes = [
        f"stopped: {result.stopped}, after {result.seconds:.1f} s; {counts.text()}",
        f"{result.report.op_graphs} operator graphs; {len(result.rejected)} rejected, {len(result.unknown)} undecided",
    ]
    columns = ("nr >", "kernels >", "split", "passes >", "ops >", "verdict", "last store")
    print_table(f"structures of {result.program.name}", columns, rows, notes)


def _save(directory: Path, result: Result) -> None:
    stem = file_stem(result.program.name.replace("/", "_").replace(":", "_"))
    for i, f in enumerate(result.structures):
        write_file(directory / f"{stem}.{i}.json", json_module.dumps(f.graph.to_json(), indent=1) + "\n")


def threads_text(graph: KernelGraph) -> str:
    """Chains of element-wise operators that stay in registers, of every kernel."""
    return "\n".join(f"kernel {b.name}\n" + "\n".join(f"  {t}" for t in thread_graphs(b)) for b in graph.blocks)


def verify(
    program: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="The program: a named workload, or JSON.")],
    graph: Annotated[str, typer.Argument(help="The µGraph as JSON, ours or Mirage's (FILE#0, FILE#1, …).")],
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100_000, metavar="N", help="Random tests.")] = 3,
    json: Json = False,
) -> int:
    """Verify a µGraph against a program by random tests over finite fields and in float64."""
    chosen = programs(program)
    if len(chosen) != 1:
        raise UsageError(f"{program!r} names {len(chosen)} programs", "name one")
    verdict = verify_graph(chosen[0], read_graph(graph, chosen[0]), rounds=rounds, real_size=True)
    if json:
        print_json(verdict_document(verdict))
    else:
        print_text(str(verdict))
    return 0 if verdict.accepted else 5


def programs(name: str) -> list[TensorProgram]:
    """The programs that an argument names: workloads by name or glob, or one as a JSON file."""
    if name.endswith(".json"):
        data = read_json(name)
        with _file(name):
            return [TensorProgram.from_json(data)]
    return [workload(n) for n in match((name,))]


def read_graph(path: str, program: TensorProgram | None = None) -> KernelGraph:
    """A µGraph from a JSON file, ours or one of Mirage's, which holds several: ``FILE#2`` is the third of them.

    Its tensors have no names there, and get those of ``program`` in order.
    """
    path, _, number = path.partition("#")
    data = read_json(path)
    if isinstance(data, dict) and "mugraph" not in data:  # as mufuser show --json prints it
        data = data.get("graph", data)
    if not isinstance(data, list):
        with _file(path):
            return graph_from_json(data)
    with _file(path):
        graphs = mirage_graphs(data, program.inputs if program else (), program.outputs if program else ())
    if number and not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) < len(graphs)):
        raise UsageError(f"{path} has no µGraph {shown(number)}", f"it has {len(graphs)}, from 0 on")
    return graphs[int(number or 0)]


@contextmanager
def _file(path: str) -> Iterator[None]:
    """Errors of what a file says, as errors of the file."""
    try:
        yield
    except (ProgramError, ModelFileError) as error:
        raise ModelFileError(f"{path}: {error.message}", error.hint) from error
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: {error.message}", error.hint) from error
