"""Versions of installed packages, as results and caches name them."""

from __future__ import annotations

from importlib import metadata


def version_of(name: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
