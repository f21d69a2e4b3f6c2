"""The Markdown twin of a page, piece by piece, and what a build of a small site keeps of it.

``tests/tools/test_build_faults.py`` compares builds byte by byte, twins included, and deletes a
tutorial; ``tests/repository/test_markdown_twins.py`` reads the twins of the whole site.
"""

import json
import re
import shutil

import pytest

from docs._ext.site.markdown_twin import converted, section_of
from tests.support import ROOT
from tests.support.small_site import SmallSite

SETTINGS = {
    "html_title": "Small Site",
    "extensions": "docs._ext.site.markdown_twin,docs._ext.site.mathml",
    "html_math_renderer": "mathml",
    "smartquotes": 0,
    "templates_path": ROOT / "docs" / "_templates",
    "html_static_path": ROOT / "docs" / "_static",
    "html_theme": "pydata_sphinx_theme",
    "html_theme_options.article_header_end": "copy-markdown",
}
PAGES = {
    "index.rst": "Home\n====\n\nFirst.\n\n.. toctree::\n\n   reference/page\n   performance/fast\n"
    "   performance/early\n",
    "404.rst": ":orphan:\n\nLost\n====\n\nText.\n",
    "performance/fast.rst": """
:description: How "fast".

Fast
====

See :ref:`there <part>`, :doc:`/reference/page`, :ref:`genindex` and
`a host <https://example.org/x.html>`_, or :math:`a_1 < b`.

.. math:: a &= b \\\\ c &= d

.. code-block:: console

   $ run
""",
    "performance/early.rst": "Early\n=====\n\nThe second.\n",
    "reference/page.rst": "Page\n====\n\nThe page.\n\n.. _part:\n\nPart\n----\n\nText.\n",
}


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<p>a_b _c *d* `e` 1 < 2 &lt;p&gt;</p>", r"a_b \_c \*d\* \`e\` 1 \< 2 \<p>"),
        ("<p>one\ntwo</p>", "one two"),
        ("<h2>Title<a class='headerlink' href='#t'>#</a></h2>", "## Title"),
        ('<p><a href="#x" title="Long."><span>8 ms</span></a></p>', "[8 ms](#x)"),
        (
            '<div class="highlight-Python"><pre><span>if</span> a &lt; b:\n  c</pre></div>',
            "```python\nif a < b:\n  c\n```",
        ),
        (
            '<p><a href="#x">It hangs</a> <span class="symptom-effect">silent</span>.</p>',
            "[It hangs](#x) (silent).",
        ),
        ('<p><span class="symptom-effect">silent</span> row</p>', "silent row"),
        ('<div class="highlight-default"><pre>&gt;&gt;&gt; a</pre></div>', "```pycon\n>>> a\n```"),
        ("<pre>```\na\n```</pre>", "````text\n```\na\n```\n````"),
        (
            '<div class="sphx-glr-script-out highlight-none"><pre>1\n</pre></div>',
            "Output:\n\n```text\n1\n```",
        ),
        (
            "<table><colgroup><col></colgroup> <thead><tr><th><p>a|b</p></th></tr></thead>"
            "<tbody><tr><td><p><code>c|d</code></p></td></tr></tbody></table>",
            "| a\\|b |\n| --- |\n| `c\\|d` |",
        ),
        (
            '<div class="note admonition"><p class="admonition-title">Note</p><p>a</p></div>',
            "> **Note**\n>\n> a",
        ),
        (
            "<details><summary><span>a</span><span>b</span></summary>\n<p>c</p></details>",
            "**a · b**\n\nc",
        ),
        ('<p class="symptom-band"><span>a</span> <span>b</span></p>', "a · b"),
        (
            '<dl class="field-list"><dt>A:</dt><dd><p>b <em>c</em></p></dd>'
            "<dt>D:</dt><dd><ul><li><p>e</p></li></ul></dd></dl>",
            "- **A**: b c\n- **D**:\n  - e",
        ),
        ("<dl><dt>a</dt><dd><p>b</p><p>c</p></dd></dl>", "- **a**: b\n\n  c"),
        (
            '<dl class="py class"><dt class="sig">f(\n<em>a</em>)<a class="viewcode-link" '
            'href="https://example.org">[source]</a></dt><dd><p>b</p></dd></dl>',
            "```python\nf( a)\n```\n\n[Source](https://example.org)\n\nb",
        ),
        (
            '<figure>\n<svg role="img" aria-label=\'A "chart". a: 1.\' width="1"><title>t</title>'
            "</svg>\n<figcaption><p>c</p></figcaption></figure>",
            'Chart: A "chart". a: 1.\n\nc',
        ),
        ('<img src="a.png" alt="A\nfigure"><img src="b.png" alt="">', "![A figure](a.png)"),
        ("<form><input></form>\n<p>a</p>\n<div class='term-hints'><div>b</div></div>", "a"),
    ],
)
def test_converted(html, markdown):
    assert converted(html) == markdown


def test_the_longest_beginning_decides_the_section():
    assert section_of("tutorials/memory/a") == "Tutorials"
    assert section_of("tutorials/debugging/a") == "Debugging: symptoms"
    assert section_of("reference/api/a") == "API"
    assert section_of("elsewhere/a") == "Reference"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return SmallSite(tmp_path_factory.mktemp("small"), PAGES, **SETTINGS).built()


@pytest.fixture
def site(source, tmp_path):
    """A copy of the built site that a test may change and build again."""
    return source.copy(tmp_path)


def twins(site):
    return sorted(path.relative_to(site.html).as_posix() for path in site.html.rglob("*.md*"))


def test_every_page_has_a_twin_and_its_script(source):
    assert twins(source) == sorted(
        f"{name.removesuffix('.rst')}.html.{kind}"
        for name in PAGES
        if name != "404.rst"
        for kind in ("md", "md.js")
    )
    text = (source.html / "performance" / "fast.html.md").read_text()
    script = (source.html / "performance" / "fast.html.md.js").read_text()
    assert script == f"window.markdownTwin = {json.dumps(text, ensure_ascii=False)};\n"


def test_twin_says_what_the_page_says(source):
    text = (source.html / "performance" / "fast.html.md").read_text()
    head, body = text.removeprefix("---\n").split("\n---\n", 1)
    head = {
        key: json.loads(value) for key, _, value in (x.partition(": ") for x in head.split("\n"))
    }
    stamp = head.pop("stamp")
    assert stamp.startswith("Built on 20")
    assert ", torch 2." in stamp
    assert head == {"title": "Fast", "description": 'How "fast".', "page": "fast.html"}
    assert body == (
        "\n# Fast\n\nSee [there](../reference/page.html.md#part), "
        "[Page](../reference/page.html.md), [Index](../genindex.html) and "
        "[a host](https://example.org/x.html), or $a_1 < b$.\n\n"
        "$$\na &= b \\\\ c &= d\n$$\n\n```console\n$ run\n```\n"
    )


def test_page_names_its_twin(source):
    page = source.page("performance/fast")
    assert '<link rel="alternate" type="text/markdown" href="fast.html.md" />' in page
    assert 'data-twin="fast.html.md"' in page
    assert re.search(r'<script defer="defer" src="../_static/copy-markdown\.js\b', page)
    for name in ("404", "genindex"):
        other = (source.html / f"{name}.html").read_text()
        assert "text/markdown" not in other
        assert "copy-markdown" not in other


def test_llms_txt_lists_the_twins_by_section(source):
    assert (source.html / "llms.txt").read_text() == (
        "# Small Site\n\n> First.\n\n"
        "## Tutorials\n\n- [Home](index.html.md): First.\n\n"
        "## Reference\n\n- [Page](reference/page.html.md): The page.\n\n"
        '## Performance\n\n- [Fast](performance/fast.html.md): How "fast".\n'
        "- [Early](performance/early.html.md): The second.\n"
    )


def test_twins_come_and_go_with_their_pages(site):
    site.built()  # in the copied folder Sphinx reads everything once
    unchanged = site.html / "performance" / "fast.html.md"
    before = unchanged.stat().st_mtime_ns
    site.write({"sub/new.rst": "New\n===\n\nNew page.\n"})
    site.append("index.rst", "   sub/new\n")
    site.built()
    assert unchanged.stat().st_mtime_ns == before
    assert "sub/new.html.md" in twins(site)
    assert "- [New](sub/new.html.md): New page." in (site.html / "llms.txt").read_text()
    shutil.rmtree(site.docs / "sub")
    site.write({"index.rst": PAGES["index.rst"]})
    site.built()
    assert [name for name in twins(site) if "new" in name] == []
    assert "new" not in (site.html / "llms.txt").read_text()


def test_an_address_makes_links_absolute(site):
    site.built(SITE_URL="https://example.org/manual")
    text = (site.html / "performance" / "fast.html.md").read_text()
    assert 'page: "https://example.org/manual/performance/fast.html"\n' in text
    assert "](https://example.org/manual/reference/page.html.md#part)" in text
    index = (site.html / "llms.txt").read_text()
    assert "- [Fast](https://example.org/manual/performance/fast.html.md): " in index
