"""The releases of TorchRL that the doctor was run on."""

from __future__ import annotations

import importlib.metadata

KNOWN_RELEASES = ("0.11", "0.12", "0.13", "0.14")


def release_note():
    """A sentence where the installed TorchRL is of none of these releases; else None."""
    try:
        version = importlib.metadata.version("torchrl")
    except importlib.metadata.PackageNotFoundError:
        return None
    if ".".join(version.split(".")[:2]) in KNOWN_RELEASES:
        return None
    first, last = KNOWN_RELEASES[0], KNOWN_RELEASES[-1]
    return f"This doctor was run on TorchRL {first} to {last}, not on {version}; it goes on."
