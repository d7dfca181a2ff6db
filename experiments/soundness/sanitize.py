"""Run a few kernels under ``compute-sanitizer``, each tensor in an allocation of its own, so that an access beyond it is seen.

The parent (:class:`Sanitizer`) writes compiled kernels to a file; ``python -m experiments.soundness.sanitize FILE`` is what the
tool runs. It answers each kernel with a JSON line.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path

from fuser.ir.program import TensorProgram
from search.measure.session import Options
from search.measure.session import Session
from search.measure.timing import Kernels
from search.measure.timing import prepare
from search.measure.timing import time_batch

PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/bin")
TOOLS = ("memcheck", "racecheck")
Item = tuple[TensorProgram, Kernels, Options]


@dataclass(frozen=True)
class Verdict:
    """What one tool said: ``ok``, ``errors``, ``failed`` (the tool itself), ``timeout`` or ``absent``."""

    tool: str
    status: str
    kernels: int = 0
    errors: int = -1
    detail: str = ""


def find_tool() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(PLACES))


class Sanitizer:
    """The tools one after the other in the background of the main run."""

    def __init__(self, items: Sequence[Item], folder: Path) -> None:
        self.count, self.folder, self.path = len(items), folder, find_tool()
        self.left = list(TOOLS)
        self.verdicts: list[Verdict] = []
        self.process: subprocess.Popen[bytes] | None = None
        if self.path is None or not items:
            why = "no kernel to check" if self.path else "compute-sanitizer is neither on the path nor in the CUDA folders"
            self.verdicts = [Verdict(t, "absent", detail=why) for t in TOOLS]
            self.left = []
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernels.pickle").write_bytes(pickle.dumps(list(items)))
        self._next()

    def _next(self) -> None:
        if not self.left:
            return
        assert self.path is not None
        self.tool = self.left.pop(0)
        log = self.folder / f"{self.tool}.log"
        command = [self.path, "--tool", self.tool, "--target-processes", "application-only", "--log-file", str(log)]
        if self.tool == "memcheck":
            command += ["--report-api-errors", "no"]  # libraries probe for what a device lacks
        command += [sys.executable, "-m", "experiments.soundness.sanitize", str(self.folder / "kernels.pickle")]
        env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        with (self.folder / f"{self.tool}.out").open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)

    def poll(self) -> None:
        """Take the verdict of a tool that has ended and start the next one."""
        if self.process is not None and self.process.poll() is not None:
            self.verdicts.append(self._verdict())
            self.process = None
            self._next()

    def finish(self, seconds: float) -> list[Verdict]:
        """Wait at most so long; what is not done then is ended."""
        deadline = time.monotonic() + seconds
        while self.process is not None and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.1)
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            answered = len(self._answers())
            self.verdicts.append(Verdict(self.tool, "timeout", answered, detail=f"{answered} of {self.count} kernels were done"))
            self.verdicts += [Verdict(t, "timeout", detail="never started") for t in self.left]
            self.process = None
        return self.verdicts

    def _answers(self) -> list[dict[str, str]]:
        text = (self.folder / f"{self.tool}.out").read_text(errors="replace")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def _verdict(self) -> Verdict:
        path = self.folder / f"{self.tool}.log"
        log = path.read_text(errors="replace") if path.exists() else ""
        answers = self._answers()
        # memcheck: "ERROR SUMMARY: 0 errors"; racecheck: "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
        counts = [int(n) for n in re.findall(r"SUMMARY:.*?(\d+) errors?", log)]
        if len(answers) < self.count or not counts:
            out = (self.folder / f"{self.tool}.out").read_text(errors="replace").strip().splitlines()
            lines = [*log.strip().splitlines()[-3:], *out[-1:]]
            return Verdict(self.tool, "failed", len(answers), sum(counts) if counts else -1, " | ".join(lines)[:400])
        bad = [a for a in answers if a["status"] != "ok"]
        first = next((line for line in log.splitlines() if "Invalid" in line or "hazard" in line.lower() or "Error:" in line), "")
        detail = first or "; ".join(f"{a['name']}: {a['status']} {a['detail']}" for a in bad)[:300]
        return Verdict(self.tool, "errors" if sum(counts) or bad else "ok", len(answers), sum(counts), detail)


def main(path: str) -> None:
    """Check each kernel of the file once, in this process."""
    items: list[Item] = pickle.loads(Path(path).read_bytes())
    for program, kernels, options in items:
        session = Session(program, options, "cuda")
        prepared = prepare(session, kernels)
        (found,) = time_batch(session, [prepared])
        print(
            json.dumps({"name": program.name} | {k: v for k, v in asdict(found).items() if k in ("status", "detail")}), flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1])
