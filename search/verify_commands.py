"""The command ``verify``: a µGraph against a program, or all kernels of a report once more."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from fuser.arguments import Json
from fuser.console import error_document
from fuser.console import plain
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import render_error
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.files import counted
from fuser.files import read_json
from fuser.files import shown
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.lower.compile import neutral_text
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate_graph
from fuser.superopt.commands import verify as verify_graph
from fuser.superopt.verify.verdicts import verdict_document
from fuser.superopt.verify.verifier import verify as verdict_of
from search.cover.stitch import renamed
from search.evidence import MODEL
from search.evidence import SUFFIXES
from search.evidence import made_by

SAME = ("rounds", "primes", "law", "bound", "heuristic", "sizes", "real_size", "cut")
"""Of the evidence of a verdict, what is the same on every machine."""
AGAIN = "optimize the model again"
SCHEMA = 1
"""The form of reports."""
REPORT = "report.json"
"""In the output folder of optimize or tune."""


def verify(
    program: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|FILE|REPORT", help="The program: a named workload, or JSON. Or a report.json, or its folder."
        ),
    ],
    graph: Annotated[
        str | None, typer.Argument(help="The µGraph as JSON, ours or Mirage's (FILE#0, FILE#1, …); none with a report.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100_000, metavar="N", help="Random tests of a µGraph.")] = 3,
    json: Json = False,
) -> int:
    """Verify a µGraph against a program by random tests over finite fields and in float64.

    With the report.json of optimize or tune: verify every kernel of it again, and whether its source is what its µGraph and
    schedule generate and what lies beside the report, whether its verdict is what the report says, and whether its times are
    there.
    """
    if graph is not None:
        return verify_graph(program, graph, rounds, json)
    path = Path(program) / REPORT if Path(program).is_dir() else Path(program)
    if not path.is_file():
        raise UsageError(
            f"there is no file {shown(str(path), 200)}, and no µGraph is given", "mufuser verify PROGRAM GRAPH, or REPORT"
        )
    found = check_report(path)
    wrong = [c for c in found if c.wrong]
    if not json:
        _show(program, found)
    if not wrong:
        if json:
            print_json({"kernels": found})
        return 0
    first = f"{wrong[0].kernel}: {wrong[0].wrong[0]}"
    error = NoValidKernelError(f"{len(wrong)} of {counted(len(found), 'kernel')} of {program} do not hold; {first}", AGAIN)
    if not json:
        raise error
    render_error(error)
    print_json({"kernels": found, **error_document(error)})
    return error.exit_code


@dataclass(frozen=True)
class Checked:
    """A kernel of a report: the evidence of its verdict, found again, its times, and what does not hold."""

    kernel: str
    verdict: str
    evidence: Mapping[str, Any]
    predicted_us: float | None
    measured_us: float | None
    wrong: tuple[str, ...]


def check_report(path: Path) -> list[Checked]:
    """Every kernel of a report with what does not hold of it. Raises :class:`ModelFileError` where ``path`` is no report of this
    version."""
    report = read_json(path)
    if not isinstance(report, dict) or not isinstance(report.get("kernels"), dict):
        raise ModelFileError(f"{path} is no report of mufuser", "name a report.json of optimize or tune")
    if report.get("schema") != SCHEMA:
        raise ModelFileError(f"{path} has the form {shown(report.get('schema'))}, not {SCHEMA}", AGAIN)
    _check_version(path, report)
    try:
        verdicts = {key: _verdict(said) for key, said in report["structures"].items()}
        files = {kernel: _files(path.parent, kernel, entry) for kernel, entry in report["kernels"].items()}
        every = [c for name, said in report["graphs"].items() for c in _checked(files, report, name, said, verdicts)]
    except (FuserError, KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged: {first_line(error, 200)}", AGAIN) from error
    seen: dict[str, Checked] = {}
    for c in every:  # equal blocks share a kernel
        seen[c.kernel] = replace(c, wrong=tuple(dict.fromkeys((*seen[c.kernel].wrong, *c.wrong)))) if c.kernel in seen else c
    return [*seen.values()] + [Checked(k, "", {}, None, None, ("it has no verdict",)) for k in report["kernels"] if k not in seen]


def _check_version(path: Path, report: Mapping[str, Any]) -> None:
    made, here = report.get("made_by"), made_by()
    if not isinstance(made, dict) or "graphs" not in report or "structures" not in report:
        raise ModelFileError(f"{path} has no evidence of its kernels: an older mufuser wrote it", AGAIN)
    if made.get("mufuser") != here["mufuser"]:
        raise ModelFileError(
            f"{path} was written by mufuser {shown(made.get('mufuser'))}, and this is {here['mufuser']}, which generates others",
            f"verify it with that version, or {AGAIN}",
        )
    if made.get("source") != here["source"]:
        raise ModelFileError(f"{path} was written by another state of mufuser {here['mufuser']}, which generates others", AGAIN)


def _checked(
    files: Mapping[str, _Files], report: Mapping[str, Any], name: str, said: Mapping[str, Any], verdicts: Mapping[str, Any]
) -> list[Checked]:
    """The kernels of one graph of the report, one for each block."""
    graph, schedule = graph_from_json(said["mugraph"]), Schedule.from_json(said["schedule"])
    sources = {b.name: s for b, s in zip(graph.blocks, generate_graph(graph, schedule), strict=True)}
    ran = name == MODEL and (report.get("run") or {}).get("us") is not None
    found = []
    for part in said["parts"]:
        kind, evidence, wrong = verdicts.get(part["structure"], ("", {}, ["it has no verdict"]))
        if kind and not _consists(graph, part["blocks"], graph_from_json(report["structures"][part["structure"]]["mugraph"])):
            wrong = [*wrong, "it is no kernel of the µGraph that was verified"]
        for block, kernel in zip(part["blocks"], part["kernels"], strict=True):
            entry = report["kernels"].get(kernel)
            if not isinstance(entry, dict):
                found.append(Checked(kernel, kind, evidence, None, None, (*wrong, "the report does not describe it")))
                continue
            more = _entry(files[kernel], entry, sources[block], ran) + _other_target(files[kernel], entry, report.get("target"))
            us = [_number(entry, k) for k in ("predicted_us", "measured_us")]
            found.append(Checked(kernel, kind, evidence, us[0], us[1], (*wrong, *more)))
    return found


def _verdict(said: Mapping[str, Any]) -> tuple[str, dict[str, Any], list[str]]:
    """The verdict found again, its evidence, and how the report's differs from it."""
    claimed = said.get("verdict")
    verdict = verdict_of(TensorProgram.from_json(said["program"]), graph_from_json(said["mugraph"]), real_size=True)
    again = plain(verdict_document(verdict))
    kind, evidence = again["verdict"], again["evidence"]
    if not verdict.accepted:
        return kind, evidence, [str(verdict)]
    if not isinstance(claimed, dict) or not isinstance(claimed.get("evidence"), dict):
        return kind, evidence, ["it has no verdict"]
    if claimed.get("verdict") != kind:
        return kind, evidence, [f"the report says {shown(claimed.get('verdict'))}, found again: {kind}"]
    differ = next((k for k in SAME if claimed["evidence"].get(k) != evidence[k]), None)
    return kind, evidence, [f"{differ} in the report differ from those found again"] if differ else []


def _consists(whole: KernelGraph, blocks: list[str], part: KernelGraph) -> bool:
    """Whether those blocks of a graph are the blocks of another one but for the names of kernels and tensors."""
    mine = {b.name: b for b in whole.blocks}
    return [_nameless(mine[b]) for b in blocks] == [_nameless(b) for b in part.blocks]


def _nameless(block: BlockGraph) -> Any:
    names = dict.fromkeys((*block.inputs, *block.outputs))
    return renamed(block, {n: f"t{i}" for i, n in enumerate(names)}, "")


def _number(entry: Mapping[str, Any], key: str) -> float | None:
    value = entry.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True)
class _Files:
    """The files of a kernel: its Triton without names, what its PTX is for, and what does not hold of them."""

    text: str
    arch: str
    wrong: tuple[str, ...]


def _files(folder: Path, kernel: str, entry: Any) -> _Files:
    if not isinstance(entry, dict):
        return _Files("", "", ())
    found = {suffix: _file(folder, entry, suffix) for suffix in SUFFIXES}
    source = found[SUFFIXES[0]][0].decode(errors="replace")
    ptx = re.search(rb"^\.target sm_(\d+)", found[".ptx"][0], re.MULTILINE)
    wrong = tuple(wrong for _, wrong in found.values() if wrong)
    return _Files(neutral_text(source, kernel), ptx[1].decode() if ptx else "", wrong)


def _other_target(files: _Files, entry: Mapping[str, Any], target: Any) -> list[str]:
    """What says that the code of a kernel is for another architecture than it is for."""
    said = {"its entry": f"sm_{entry.get('arch')}"} | ({"the report": target.get("arch")} if isinstance(target, dict) else {})
    known = f"sm_{files.arch}"
    return [f"{what} says {shown(arch)}, its PTX {known}" for what, arch in said.items() if files.arch and arch != known]


def _entry(files: _Files, entry: Mapping[str, Any], source: KernelSource, ran: bool) -> list[str]:
    """What does not hold of a kernel for a block that generates ``source``: its files, launch and times. Equal blocks share a
    kernel, which has the names of one of them."""
    wrong = [*files.wrong]
    if files.text and files.text != neutral_text(source.text, source.name):
        wrong.append("its source is not what its µGraph and schedule generate")
    tensors = [{"dtype": d, "shape": [*s]} for d, s in zip(source.dtypes, source.shapes, strict=True)]
    if [{"dtype": a["dtype"], "shape": a["shape"]} for a in entry["args"]] != tensors or any(
        entry[k] != v for k, v in _launch(source).items()
    ):
        wrong.append("its launch is not what its µGraph and schedule generate")
    if _number(entry, "predicted_us") is None:
        wrong.append("it has no predicted time")
    if ran and "measured_us" not in entry:
        wrong.append("the model was run, but it has no measured time")
    return [w for w in wrong if w]


def _launch(source: KernelSource) -> dict[str, Any]:
    found = {"grid": [source.grid, 1, 1], "num_stages": source.num_stages, "pdl": source.pdl}
    return found if source.grows else found | {"num_warps": source.num_warps}  # else the compiler adds warps


def _file(folder: Path, entry: Mapping[str, Any], suffix: str) -> tuple[bytes, str]:
    """What is in a file of a kernel, and what does not hold of it."""
    name = next((str(f) for f in entry.get("files") or () if str(f).endswith(suffix)), "")
    if not name or Path(name).name != name:
        return b"", f"it names no {suffix} file"
    path = next((p for p in (folder / "kernels" / name, folder / name) if p.is_file()), None)
    if path is None:
        return b"", f"{name} is missing"
    value = path.read_bytes()
    same = hashlib.sha256(value).hexdigest() == dict(entry.get("sha256") or {}).get(suffix)
    return value, "" if same else f"{name} was changed: its hash is not the report's"


def _show(path: str, found: list[Checked]) -> None:
    rows = [
        (
            c.kernel,
            c.verdict or "none",
            str(c.evidence.get("rounds", "-")),
            "-" if c.evidence.get("bound") is None else f"{c.evidence['bound']:.0e}",
            *("-" if us is None else f"{us:.2f}" for us in (c.predicted_us, c.measured_us)),
            "; ".join(c.wrong) or "holds",
        )
        for c in found
    ]
    primes = sorted({f"{p}, {q}" for c in found for p, q in c.evidence.get("primes", ())})
    reasons = Counter(h for c in found for h in c.evidence.get("heuristic", ()))
    notes = [f"primes: {'; '.join(primes)}"] if primes else []
    notes += [f"not proven of {n}: {why}" for why, n in reasons.items()]
    heads = ("kernel", "verdict", "rounds >", "bound >", "µs >", "run µs >", "report")
    print_table(f"{counted(len(found), 'kernel')} of {path}, verified again", heads, rows, notes)
