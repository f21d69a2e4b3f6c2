"""What belongs to the site as a whole: head, stamp, twins, search, hints, cards, markup, addresses.

Switch on: ``"docs._ext.site"`` in ``extensions``. Each module has its own manual on top, and can be
switched on alone.
"""

MODULES = (
    "claims",
    "doctor_files",
    "downloads",
    "entry_cards",
    "figure_numbers",
    "fingerprint",
    "gallery_cards",
    "general_index",
    "html_fixes",
    "markdown_twin",
    "mathml",
    "memory_planner",
    "not_executed",
    "page_meta",
    "page_source",
    "page_stamp",
    "parallel_read",
    "redirects",
    "search_index",
    "style_sheets",
    "term_hints",
    "term_index",
    "tutorial_head",
)


def setup(app):
    for module in MODULES:
        app.setup_extension(f"{__name__}.{module}")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
