"""Values, tables, plots and decisions out of the benchmark records, and what is new.

Switch on: ``"docs._ext.records"`` in ``extensions``. Each module has its own manual on top, and can
be switched on alone.
"""

MODULES = (
    "directives",
    "change_list",
    "choice",
    "replicate",
    "scaling",
    "timeline",
)


def setup(app):
    for module in MODULES:
        app.setup_extension(f"{__name__}.{module}")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
