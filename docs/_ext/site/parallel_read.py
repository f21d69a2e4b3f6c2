"""Read a few changed pages in the process of the build, as many at once only where that pays.

Switch on: ``"docs._ext.site"`` in ``extensions``. Where a build may use several processes, Sphinx
forks some for a single page as well. Each sends back the whole environment, which takes longer
than to read the page. What is written does not depend on who reads.
"""

FEW = 4  # pages; about as many are read while one environment is sent and merged


def read_here(app, env, pages):
    """env-before-read-docs: of few pages Sphinx learns that there is one process."""
    app.processes = app.parallel
    if len(pages) <= FEW:
        app.parallel = 1


def write_beside(app, env):
    """env-updated: all pages may have to be written, as before by all processes."""
    app.parallel = app.processes


def setup(app):
    app.connect("env-before-read-docs", read_here)
    app.connect("env-updated", write_beside)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
