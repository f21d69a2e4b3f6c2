"""What the installed packages say: links, API pages, knobs, renamed names, docstrings.

Switch on: ``"docs._ext.source"`` in ``extensions``. Each module has its own manual on top, and can
be switched on alone.
"""

MODULES = (
    "api_pages",
    "knobs",
    "renamed_api",
    "role",
    "upstream_says",
)


def setup(app):
    for module in MODULES:
        app.setup_extension(f"{__name__}.{module}")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
