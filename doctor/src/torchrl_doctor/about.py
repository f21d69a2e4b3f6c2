"""The version of the doctor, and where its manual is."""

from __future__ import annotations

__version__ = "1.1.0"


SITE = ""  # address of the manual; the build of the site fills it in where it knows it
