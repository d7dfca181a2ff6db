"""The main job on a real model: a BERT-base encoder with random weights through Relay's PyTorch frontend, optimized for an H200
with no GPU present.

python -m experiments.demo [NETWORK] [--layers N] [--target DEVICE] [-o FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.models import NETWORKS
from experiments.models import relay_module
from experiments.models import save
from experiments.script import script
from fuser.cli import main as mufuser
from fuser.console import note
from fuser.console import render_error
from fuser.errors import FuserError


def main() -> int:
    """Make the model, write it as files, and run ``mufuser optimize`` on them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", default="bert-base", choices=list(NETWORKS))
    parser.add_argument("--layers", type=int, help="number of layers (default: as published)")
    parser.add_argument("--target", default="h200")
    parser.add_argument("-o", "--output", type=Path, default=Path("out"))
    args = parser.parse_args()
    try:
        note(f"… making {NETWORKS[args.network].title} with random weights")
        mod, params = relay_module(args.network, args.layers)
        model, weights = save(mod, params, args.output, args.network)
    except FuserError as error:
        render_error(error)
        return error.exit_code
    note(f"… mufuser optimize {model} --params {weights} --target {args.target} -o {args.output}")
    return mufuser(["optimize", str(model), "--params", str(weights), "--target", args.target, "-o", str(args.output)])


if __name__ == "__main__":
    script(main)
