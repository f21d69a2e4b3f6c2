"""Sphinx-gallery as this site needs it: guarded, ordered, cheap, never stale, with notebooks.

Switch on: ``"docs._ext.gallery"`` in ``extensions``. Each module has its own manual on top, and can
be switched on alone.
"""

MODULES = (
    "cache",
    "cost",
    "figures",
    "folds",
    "guard",
    "order",
    "processes",
    "output",
    "progress",
    "stack",
    "skipped_steps",
    "warnings",
    "notebooks",
)


def setup(app):
    for module in MODULES:
        app.setup_extension(f"{__name__}.{module}")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
