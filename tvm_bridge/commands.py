"""The command ``optimize``."""

from __future__ import annotations

import json as json_text
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Annotated
from typing import Any

import typer

from fuser.arguments import BucketSizes
from fuser.arguments import Json
from fuser.arguments import Set
from fuser.arguments import Target
from fuser.arguments import device_of
from fuser.by_fields import by_fields
from fuser.console import note
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import print_text
from fuser.errors import FuserError
from fuser.errors import NothingSupportedError
from fuser.errors import NoValidKernelError
from fuser.files import counted
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.lower.written import written
from fuser.outputs import promised
from fuser.runtime.library import constants
from search.buckets.sizes import parsed
from search.buckets.sizes import said
from search.tune_report import NoRecords
from search.tune_report import RecordsFile
from search.tune_report import records_of
from search.tuner.efforts import WORDS
from tvm_bridge.api import RELAX
from tvm_bridge.api import TORCH_RUNTIME
from tvm_bridge.api import Step
from tvm_bridge.api import optimize as optimize_model
from tvm_bridge.api import with_library
from tvm_bridge.api import with_relax
from tvm_bridge.output import publish
from tvm_bridge.report import document
from tvm_bridge.result import Optimized
from tvm_bridge.result import predicted_us

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model: .pt2 (torch.export), .onnx, or Relay's .json (tvm.ir.save_json).")
]


@dataclass(frozen=True)
class Optimize:
    """Options of ``optimize``."""

    params: Annotated[
        Path | None, typer.Option("--params", help="The parameters of a Relay model, written by save_param_dict.")
    ] = None
    target: Target = "h200"
    settings: Set = None
    effort: Annotated[str, typer.Option("--effort", metavar="EFFORT", help=f"{WORDS}.")] = "instant"
    records: RecordsFile = None
    no_records: NoRecords = False
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for kernels, report.json and plan.svg.")] = Path(
        "mufuser-out"
    )
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="WHERE",
            help="Run it on cuda, cpu (Triton's interpreter), none (default: a GPU of that kind, if any).",
        ),
    ] = None
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime",
            metavar="NAME",
            help="What runs it: torch, relay, or relax (a library for TVM 0.27; default: relay for Relay models, else torch).",
        ),
    ] = None
    buckets: BucketSizes = None
    weights: Annotated[
        str, typer.Option("--weights", metavar="WHERE", help="Of a library for relax: inside of it, or beside it.")
    ] = "inside"
    library: Annotated[
        bool, typer.Option("--library/--no-library", help="Build and export a Relay model (needs TVM with Relay).")
    ] = True
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="Compare it with the unpartitioned model.")] = True
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", min=1, metavar="SECONDS", help="Seconds that TVM may take (default: by the size of the model)."
        ),
    ] = None
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, max=1024, metavar="N", help="Processes that price and compile.")] = 2
    json: Json = False


@by_fields
def optimize(model: Model, *, options: Optimize) -> int:
    """Choose kernels for a whole model, compile and check them; run and time them where there is a GPU.

    Writes Triton sources, PTX and cubins to OUTPUT/kernels, the plan to OUTPUT/report.json, and its drawing to
    OUTPUT/plan.svg. A Relay model is also built by TVM with the regions worth fusing, to OUTPUT/model.so. With --runtime relax
    every model is built, with all of its kernels, and OUTPUT/model.so runs in TVM's virtual machine; mufuser package puts it into
    a folder with all that it needs. Files that an earlier run wrote there (OUTPUT/files.json lists them) are replaced or removed.
    """
    with promised(options.output):
        return _optimize(model, options)


def _optimize(model: Path, options: Optimize) -> int:
    step: Step = (lambda text: None) if options.json else (lambda text: note(f"… {text}"))
    result = optimize_model(
        model,
        options.params,
        target=device_of(options.target, options.settings),
        effort=options.effort,
        records=records_of(options.records, options.no_records),
        jobs=options.jobs,
        step=step,
        on=options.on,
        runtime=options.runtime,
        weights=options.weights,
        build=False,
        whole=True,
        buckets=parsed(options.buckets) if options.buckets else None,
    )
    report = _written(result, options.output)
    if options.library and options.runtime == RELAX:
        result = with_relax(result, weights=options.weights, step=step, timeout=options.timeout)
        report = _written(result, options.output)
    elif options.library and result.relay and options.runtime != TORCH_RUNTIME:
        strict = options.runtime is not None
        result = with_library(
            result, model, options.params, strict=strict, compare=options.compare, step=step, timeout=options.timeout
        )
        report = _written(result, options.output)
    if error := result.failure or _wrong(result) or _nothing(result):
        if not options.json:
            show(result, report, options.output)
        raise error
    if options.json:
        print_json(report)
    else:
        show(result, report, options.output)
    return 0


def _written(result: Optimized, output: Path) -> dict[str, Any]:
    """The report, written to ``output`` with the kernels and the library in the place of those of an earlier run."""

    def write(folder: Path) -> dict[str, Any]:
        if made := result.built or result.library:
            made.export(folder / "model.so")
        report = document(result, folder)
        (folder / "report.json").write_text(json_text.dumps(report, indent=1) + "\n")
        return report

    return publish(output, write)


def _nothing(result: Optimized) -> FuserError | None:
    """No kernel is made of anything in the model: neither for all of it nor for a region, and no product could have had one."""
    if result.regions or any(n.products for n in result.program.nodes) or (result.made and _generated(result.made.graph)):
        return None
    seen = Counter(str(n.attr.get("callee", n.op)) for n in result.program.nodes)
    names = ", ".join(f"{k} ({v})" for k, v in seen.most_common(4))
    return NothingSupportedError(
        f"no kernel is generated for {result.file.source}; it consists of {names or 'nothing'}", "the model is left as it is"
    )


def _generated(graph: KernelGraph) -> bool:
    """Whether a kernel of the graph is ours: a block, or an operator that is written in Triton."""
    tensors = graph.device_tensors
    calls = (k for k in graph.kernels if isinstance(k, LibraryKernel) and k.outputs[0] in tensors)
    return bool(graph.blocks) or any(written(k, constants(k, graph, tensors), tensors, {}) is not None for k in calls)


def _wrong(result: Optimized) -> FuserError | None:
    if result.trial is None or result.trial.ok:
        return None
    return NoValidKernelError(f"the kernels of {result.file.source} are wrong here: {result.trial}", "please report it")


def show(result: Optimized, report: dict[str, Any], output: Path) -> None:
    """The report for people, at 80 columns."""
    assert result.made is not None
    plan = result.made.plan
    print_table(plan.title, plan.heads, plan.rows(), plan.notes())
    if result.buckets:
        rows = [(said(b.sizes), len(b.made.graph.kernels), f"{b.made.plan.us:.1f}") for b in result.buckets]
        print_table("buckets", ("up to", "kernels >", "µs >"), rows, ["the plan is the last one's"])
    carved = result.relay and result.library is None
    if carved:
        _show_regions(result, report)
    p = report["predicted"]
    lines = [f"predicted: {p['before_us']:.0f} µs with every operator apart, {p['plan_us']:.0f} µs so ({p['speedup']:.2f}×)"]
    lines += _how(result)
    if carved:
        apart = predicted_us(result.program, result.device, ())
        lines.append(f"as TVM is given it: {p['after_us']:.0f} µs with the regions fused, {apart:.0f} µs without")
    if result.comparison:
        c = result.comparison
        lines.append(
            f"largest difference from the unpartitioned model: {c.largest:.1e} ({c.relative:.1e} of its largest value; {c.ran})"
        )
    if result.trial:
        lines.append(str(result.trial))
    lines += list(result.notes)
    lines.append(
        f"written to {output}: {counted(len(report['kernels']), 'kernel')}, report.json, plan.svg"
        + (", model.so" if report["library"] else "")
    )
    if result.library:
        lines.append(f"to run model.so on a machine with the GPU, without mufuser: mufuser package {output}")
    for line in lines:
        print_text(line)
    print_text(fill("time: " + ", ".join(f"{k} {v:.1f} s" for k, v in result.seconds.items()), 80))


def _how(result: Optimized) -> list[str]:
    """What the two predicted times have in common, and what they have not."""
    made, program = result.made, result.program
    assert made is not None
    dtypes = {program[n.inputs[0]].dtype for n in program.nodes if n.products}
    lines = ["float32 is multiplied in full precision in both: ours as three products of tf32"] if "float32" in dtypes else []
    if result.before_us < made.plan.us and not any(p.library for p in made.plan.parts):
        lines.append("every kernel is generated here; on the device itself, products that its library does faster are left to it")
    return lines


def _show_regions(result: Optimized, report: dict[str, Any]) -> None:
    rows = [
        (r["name"], r["structure"], f"{r['fused_us']:.1f}", f"{r['unfused_us']:.1f}", _error(r["check"]))
        for r in report["regions"]
    ]
    print_table(
        f"{counted(len(rows), 'region')} for TVM",
        ("region", "kernels", "fused µs >", "apart µs >", "error >"),
        rows or [("none", "", "", "", "")],
    )
    reasons = Counter(item.reason for item in result.left)
    if reasons:
        print_table("contractions left to TVM", ("count >", "reason"), [(n, why) for why, n in reasons.most_common()])
    rest = [(g["operator"], g["kernels"], f"{g['us']:.1f}") for g in report["predicted"]["rest"][:8]]
    if rest:
        print_table("the rest of the model with TVM, predicted", ("operator", "kernels >", "µs >"), rest)


def _error(check: dict[str, Any] | None) -> str:
    return "-" if check is None else f"{check['error']:.0e}"
