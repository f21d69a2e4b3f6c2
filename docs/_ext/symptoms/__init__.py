"""The debugging map, the error index and the side bar, made from the pages of symptoms.

Switch on: ``"docs._ext.symptoms"`` in ``extensions``. Each module has its own manual on top, and
can be switched on alone.
"""

MODULES = ("card", "contents", "directives", "navigation")


def setup(app):
    for module in MODULES:
        app.setup_extension(f"{__name__}.{module}")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
