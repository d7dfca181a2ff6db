"""What pages, hints and docstrings name exists: verbs, options, modules with a main, files, links, extras, figures."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from functools import lru_cache
from pathlib import Path

import pytest

import fuser
from fuser.cli import EXIT_CODES
from fuser.cli import VERBS
from fuser.cli import main
from fuser.device import list_devices
from fuser.workloads import match
from tests.paths import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"experiments/{x}.md" for x in ("README", "RESULTS", "raw/README")))
PACKAGES = ("fuser", "cost_model", "search", "tvm_bridge", "experiments")
SOURCES = [p for package in PACKAGES for p in (ROOT / package).rglob("*.py")]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "experiments/RESULTS.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@lru_cache(maxsize=32)
def texts() -> dict[str, str]:
    return {str(p.relative_to(ROOT)): p.read_text() for p in [*(ROOT / page for page in PAGES), *SOURCES]}


def commands(page: str) -> list[str]:
    """Lines of the indented blocks of a page, without their comments."""
    lines = [x.strip() for x in (ROOT / page).read_text().splitlines() if x.startswith("    ")]
    return [x.split("   #")[0].strip() for x in lines]


MUFUSER = [(page, line) for page in PAGES for line in commands(page) if line.startswith("mufuser ")]


@pytest.mark.parametrize(("page", "line"), MUFUSER, ids=[f"{p}:{x[:40]}" for p, x in MUFUSER])
def test_commands_of_the_pages_parse(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, *words = shlex.split(line)[1:]
    if verb == "VERB":
        return
    assert verb in VERBS
    assert main([verb, "--help"]) == 0
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))
    assert {w for w in words if w.startswith("-") and w != "--json"} <= known
    suites = ("mcfuser", "mirage", "graphene")
    for name in (w for w in words if "/" in w and w.split("/")[0] in suites):
        assert match([name])


def test_there_are_commands() -> None:
    assert {line.split()[1] for page, line in MUFUSER if page == "README.md"} >= set(VERBS) - {"show"}


def test_verbs_that_are_named_exist() -> None:
    named = {
        (where, verb)
        for where, text in texts().items()
        for verb in re.findall(r"`{1,2}mufuser ([a-z][a-z-]*)", text) + re.findall(r"mufuser ([a-z][a-z-]*) --", text)
    }
    assert len(named) > 5
    assert {(w, v) for w, v in named if v not in VERBS} == set()


def module_file(name: str) -> Path | None:
    path = ROOT / Path(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__main__.py") if p.is_file()), None)


def test_modules_that_are_to_be_run_have_a_main() -> None:
    named = {
        (where, m.rstrip("."))
        for where, text in texts().items()
        for m in re.findall(r"python3? -m ((?:{})(?:\.\w+)*)(?!\.?[\w.]*[*…])".format("|".join(PACKAGES)), text)
    }
    rows = re.findall(r"^\| `(experiments[\w.]*)` \|", (ROOT / "experiments/README.md").read_text(), re.M)
    assert len(named) > 8 and len(rows) > 6
    for where, module in sorted(named | {("experiments/README.md", m) for m in rows}):
        path = module_file(module)
        assert path is not None, f"{where} names {module}"
        assert path.name == "__main__.py" or '__name__ == "__main__"' in path.read_text(), f"{where}: {module} has no main"


def test_modules_of_the_pages_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:{})(?:\.\w+)+)`".format("|".join(PACKAGES)), (ROOT / page).read_text()):
            parts = name.split(".")
            found = any(
                (ROOT / Path(*parts[:n])).with_suffix(".py").is_file() or module_file(".".join(parts[:n])) for n in (2, 3, 4)
            )
            assert found or (ROOT / Path(*parts)).is_dir() or (parts[0] == "fuser" and parts[1] in fuser.PUBLIC), (
                f"{page}: {name}"
            )


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_resolve(page: str) -> None:
    text, here = (ROOT / page).read_text(), (ROOT / page).parent
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not link.startswith("http"):
            assert (here / link).exists(), link
    for path in re.findall(r"`((?:{}|tests)/[\w./-]+)`".format("|".join(PACKAGES)), text):
        assert (ROOT / path).exists() or (here / path).exists(), path


def test_extras_of_the_table_are_those_of_the_project() -> None:
    named = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", README, re.M))
    extras = set(PROJECT["optional-dependencies"])
    assert {n for pair in named for n in pair if n} - {"fuser"} <= extras | {"eager", "cublaslt", "inductor", "flex"}
    for group in re.findall(r"-e '\.\[([\w,]+)\]'", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert set(group.split(",")) <= extras


def test_extras_are_named_and_markers_of_sessions_have_tests() -> None:
    """What nothing uses is no extra; a marker without tests is said to have none."""
    extras = set(PROJECT["optional-dependencies"]) - {"test", "lint"}
    assert extras <= set(re.findall(r"`(\w+)`", README.split("## Installing parts")[1].split("Both TVMs")[0]))
    marked = any(
        re.search(r"^(?:@pytest\.|pytestmark = pytest\.)mark\.relax\b", p.read_text(), re.M)
        for p in (ROOT / "tests").rglob("*.py")
    )
    assert marked != ("there are none yet" in (ROOT / "CONTRIBUTING.md").read_text())


def test_devices_and_exit_codes() -> None:
    listed = README.split("## Devices")[1].split(":")[0]
    assert sorted(re.findall(r"\w+", listed)) == sorted(d.name for d in list_devices())
    said = " ".join(README.split("Exit codes:")[1].split("\n\n")[0].split())
    assert said == ", ".join(f"{code} {what}" for code, what in EXIT_CODES) + "."


@pytest.mark.parametrize("suite", ["mcfuser", "mirage", "graphene"])
def test_headline_figures_are_those_of_the_tables(suite: str) -> None:
    found = json.loads((ROOT / f"experiments/results/h200-{suite}/bench.json").read_text())
    ratios = [c["speedup"] for c in found["cases"] if c["speedup"]]
    (line,) = [x for x in README.splitlines() if x.startswith(f"| [{suite}]")]
    assert f"| {found['geometric_mean']:.2f} | {sum(r > 1 for r in ratios)} of {len(ratios)} |" in line


def test_fast_tuning_figures_are_those_of_the_tables() -> None:
    instant = (ROOT / "experiments/results/h200-instant/instant.txt").read_text()
    assert f"{float(re.findall(r'best peer / winner, geometric mean: ([0-9.]+)', instant)[0]):.2f} ×" in RESULTS
    accuracy = (ROOT / "experiments/results/h200-model-accuracy.txt").read_text()
    regrets = {
        suite: float(re.findall(rf"^{suite}:.*?held out .*?regret ([0-9.]+)", accuracy, re.M | re.S)[0])
        for suite in ("mcfuser", "mirage", "graphene")
    }
    words = " ".join(RESULTS.split())
    assert (
        "{:.0f} % (mcfuser), {:.0f} % (mirage) and {:.0f} % (graphene) longer".format(
            *(100 * (regrets[s] - 1) for s in ("mcfuser", "mirage", "graphene"))
        )
        in words
    )


def test_the_readme_s_python_runs_in_the_interpreter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The snippet but for the model's files and the GPU: on the CPU, at a smaller size."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    code = README.split("```python")[1].split("```")[0]
    kept = [line for line in code.splitlines() if not line.startswith(("result", "replay"))]
    assert len(kept) == len(code.splitlines()) - 2
    small = "\n".join(kept).replace("512", "64").replace("256", "32").replace('"cuda"', '"cpu"')
    found: dict = {}
    exec(small.replace("compile(program)", 'compile(program, device="cpu")'), found)
    x, w, v = (found[n].double() for n in "xwv")
    assert torch.allclose(found["y"].double(), torch.relu(x @ w) @ v, atol=0.1, rtol=1e-2)
    assert "verified" in capsys.readouterr().out


def test_files_of_the_packages_stay_small() -> None:
    assert {str(p): n for p in SOURCES if (n := len(p.read_text().splitlines())) > 415} == {}
