"""The releases of TorchRL that the doctor was run on."""

from __future__ import annotations

import functools
import importlib.metadata

KNOWN_RELEASES = ("0.11", "0.12", "0.13", "0.14")


@functools.cache
def installed_version(name):
    """The version of an installed package, by its metadata; None where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def release_note():
    """A sentence where the installed TorchRL is of none of these releases; else None."""
    version = installed_version("torchrl")
    if version is None or ".".join(version.split(".")[:2]) in KNOWN_RELEASES:
        return None
    first, last = KNOWN_RELEASES[0], KNOWN_RELEASES[-1]
    return f"This doctor was run on TorchRL {first} to {last}, not on {version}; it goes on."
