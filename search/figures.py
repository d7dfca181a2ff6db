"""Figures: in the format of a path's suffix (SVG without one); matplotlib is imported when one is drawn. The same content gives
the same bytes of SVG."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.outputs import write_file

SETTINGS: Any = {
    "svg.hashsalt": "mufuser",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BLUE, LIGHT, RED, GREEN, GREY = "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#999999"
"""Of Okabe and Ito, told apart by the colour-blind."""


def kind_of(path: Path) -> str:
    return path.suffix.lstrip(".").lower() or "svg"


def require_matplotlib(path: Path) -> None:
    """Said before anything long is begun. Raises :class:`EnvironmentError_` without matplotlib, :class:`UsageError` for a format
    that it cannot write, or a place where nothing can be."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise EnvironmentError_("drawing needs matplotlib, which is not installed", "pip install 'mufuser[plot]'") from error
    if kind_of(path) not in Figure().canvas.get_supported_filetypes():
        raise UsageError(f"matplotlib cannot draw {path}: its suffix is no format that it writes", "give it .svg, .pdf or .png")
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"nothing can be drawn to {path}", "give a file in a folder that is there and can be written")


def drawn(path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Writes the figure of ``size`` inches that ``draw`` fills."""
    require_matplotlib(path)
    import matplotlib
    from matplotlib.figure import Figure

    content, kind = io.BytesIO(), kind_of(path)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_file(path, content.getvalue())
