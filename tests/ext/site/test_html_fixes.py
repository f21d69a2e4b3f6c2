"""Every correction is needed by the installed packages, and works."""

import re
from configparser import ConfigParser
from pathlib import Path

import pydata_sphinx_theme
import pygments
import pytest
import sphinx
import sphinx_gallery
from docutils import nodes
from docutils.utils import new_document
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from pygments.styles import get_style_by_name
from pygments.token import Token
from sphinx_gallery import gen_rst

from docs._ext.site import html_fixes
from docs._ext.site.html_fixes import DIALOGS, FIXES, absolute, corrected
from tests.support import ROOT
from tests.support.small_site import SmallSite

THEME = Path(pydata_sphinx_theme.__file__).parent
STATIC = ROOT / "docs" / "_static"
CARD = """<div class="sphx-glr-thumbcontainer" tooltip="Two &lt;words&gt;."><img src="x.png" />
<p><a class="reference internal" href="m.html"><span class="doc">Title</span></a></p>
  <div class="sphx-glr-thumbnail-title">Title</div>
</div>"""


def upstream_text():
    """Source of the modules and templates that emit what the fixes are for."""
    gallery = Path(sphinx_gallery.__file__).parent
    theme = THEME / "theme" / "pydata_sphinx_theme"
    package = Path(sphinx.__file__).parent
    files = [
        Path(pygments.__file__).parent / "formatters" / "html.py",
        package / "writers" / "html5.py",
        package / "builders" / "html" / "__init__.py",
        *gallery.glob("*.py"),
        theme / "static" / "webpack-macros.html",
        theme / "layout.html",
        theme / "static" / "styles" / "theme.css",
        THEME / "toctree.py",
    ]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("icon script", "<script defer src=\"{{ pathto('_static/scripts/fontawesome.js', 1) }}"),
        ("scripts before style", '<link rel="preload" as="script" href="{{ pathto('),
        ("theme without scripts", 'data-theme="{{ default_mode }}"'),
        ("theme at first sight", 'localStorage.getItem("theme") || "{{ default_mode }}"'),
        ("gallery card", '<div class="sphx-glr-thumbcontainer" {tags}tooltip="{intro}">'),
        ("gallery tags", "<div id='sg-tag-list' class='sphx-glr-tag-list'></div>"),
        ("sidebar fold", '"toctree-toggle"'),
        ("long code", '<span class="pre">'),
        ("code in a header", '<span class="pre">'),
        ("long name", '"bd-sidenav"'),
        ("unnamed dialog", '<dialog id="pst-search-dialog">'),
        ("blocking script", "self.add_js_file('doctools.js', priority=200)"),
        ("plain spans", "cspan = f'<span class=\"{css_class}\"{title}>'"),
        ("style sheet that imports", '@import "../basic.css";'),
        ("parameter list", "self.starttag(node, 'dl')"),
    ],
)
def test_the_fault_is_still_there(name, trace):
    assert name in FIXES
    assert trace in upstream_text(), f"drop {name!r} from FIXES if pages pass without it"


def test_every_fix_has_its_trace():
    marks = test_the_fault_is_still_there.pytestmark[0].args[1]
    assert {name for name, _ in marks} == FIXES.keys()


def test_gallery_card_shows_its_text():
    html = corrected(CARD)
    assert "tooltip" not in html
    assert '<p class="sphx-glr-thumbnail-intro">Two &lt;words&gt;.</p>\n</div>' in html
    assert corrected(CARD + CARD).count("thumbnail-intro") == 2


def test_without_scripts_the_theme_is_the_light_one():
    html = '<html lang="en" data-content_root="./" data-theme="auto">'
    assert corrected(html).endswith('data-theme="light">')


def test_icon_script_and_tags_go():
    script = '<p>a</p>\n  <script defer src="_static/scripts/fontawesome.js?digest=1"></script>'
    assert corrected(script) == "<p>a</p>"
    other = '<script defer src="_static/scripts/bootstrap.js"></script>'
    assert corrected(other) == other
    assert corrected("<div id='sg-tag-list' class='sphx-glr-tag-list'></div>") == ""


def test_sidebar_fold_gets_a_name():
    html = '<summary><span class="toctree-toggle" role="presentation">'
    assert corrected(html).startswith('<summary aria-label="Pages of this section"><span')
    assert corrected("<summary>Text</summary>") == "<summary>Text</summary>"


def test_a_long_name_in_a_sidebar_breaks_between_its_words():
    link = '<li><a class="reference internal" href="x.html">{}</a></li>'
    long = corrected(link.format("SliceSamplerWithoutReplacement"))
    assert long == link.format("Slice<wbr>Sampler<wbr>Without<wbr>Replacement")
    for other in ("SliceSampler", "A title of several longer words"):
        assert corrected(link.format(other)) == link.format(other)


def test_only_long_code_breaks_and_between_its_words():
    def code(*words, mark=""):
        spans = " ".join(f'<span class="pre{mark * ("wbr" in w)}">{w}</span>' for w in words)
        return f'<code class="literal{mark}">{spans}</code>'

    for short in (["--device"], ["(1,", "84,", "84)"], ["a" * 24], [".venv-bench"]):
        assert corrected(code(*short)) == code(*short)
    for plain, broken in (
        ("InteractionType.DETERMINISTIC", "InteractionType.<wbr>DETERMINISTIC"),
        (
            "value_network_update_interval=1000",
            "value_<wbr>network_<wbr>update_<wbr>interval=<wbr>1000",
        ),
        (
            "SliceSamplerWithoutReplacement(traj_key)",
            "SliceSampler<wbr>Without<wbr>Replacement(<wbr>traj_<wbr>key)",
        ),
        ("carrier.update(policy_output)", "carrier.<wbr>update(<wbr>policy_<wbr>output)"),
        (
            "(&quot;next&quot;,&quot;some_longer_key&quot;)",
            "(&quot;next&quot;,<wbr>&quot;some_<wbr>longer_<wbr>key&quot;)",
        ),
    ):
        assert corrected(code(plain)) == code(broken, mark=" is-long")
        assert corrected(code(plain, "--seed")) == code(broken, "--seed", mark=" is-long")
    lines = code("ceil(frames_per_batch", "/", "environments)").replace(" <", "\n<")
    assert corrected(lines) == lines.replace("literal", "literal is-long")


def test_code_in_a_header_breaks_between_its_words():
    row = '<{0} class="head"><p><code class="literal"><span class="pre">{1}</span></code></p></{0}>'
    plain, broken = "no_cuda_sync=True", "no_<wbr>cuda_<wbr>sync=<wbr>True"
    assert corrected(row.format("th", plain)) == row.format("th", broken)
    assert corrected(row.format("td", plain)) == row.format("td", plain)


@pytest.mark.parametrize("name", DIALOGS)
def test_dialogs_get_a_name(name):
    html = corrected(f'<dialog id="pst-{name}">')
    assert html == f'<dialog id="pst-{name}" aria-label="{DIALOGS[name]}">'


def test_scripts_that_can_wait_are_deferred_in_their_order():
    names = ["_static/doctools.js?v=1", "../_static/copybutton.js", "clipboard.min.js"]
    for name in names:
        assert corrected(f'<script src="{name}"></script>') == (
            f'<script defer src="{name}"></script>'
        )
    # inline scripts that follow it set its options
    options = '<script src="../_static/documentation_options.js?v=1"></script>'
    assert corrected(options) == options


@pytest.mark.slow
def test_small_files_that_a_page_waits_for_are_in_it(tmp_path):
    code = "::\n\n   code\n"
    sources = {"index.rst": f"Home\n====\n\n{code}", "deep/page.rst": f":orphan:\n\nA\n=\n\n{code}"}
    bridge = "docs._ext.site.html_fixes.Templates"
    site = SmallSite(tmp_path, sources, template_bridge=bridge, extensions="sphinx_copybutton")
    static = site.built().html / "_static"
    for name, tag in (("documentation_options.js", "script"), ("copybutton.css", "style")):
        text = (static / name).read_text(encoding="utf-8")
        for page in map(site.page, ("index", "deep/page")):
            assert page.count(f"<{tag}>{text}</{tag}>") == 1
            assert name not in page


def test_spans_that_nothing_draws_are_plain():
    static = THEME / "theme" / "pydata_sphinx_theme" / "static" / "styles"
    basic = Path(sphinx.__file__).parent / "themes" / "basic" / "static" / "basic.css.jinja"
    for sheet in (static / "pydata-sphinx-theme.css", basic):
        rules = sheet.read_text(encoding="utf-8")
        assert not re.search(r"\.colon(?![\w-])", rules), f"{sheet.name} draws them"
    options = ConfigParser()
    options.read(THEME / "theme" / "pydata_sphinx_theme" / "theme.conf")
    for theme in ("light", "dark"):
        style = get_style_by_name(options["options"][f"pygments_{theme}_style"])
        text = style.style_for_token(Token.Text)
        for token in (Token.Punctuation, Token.Text.Whitespace, Token.Name, Token.Name.Namespace):
            assert style.style_for_token(token) == text, f"{token} shows in the {theme} theme"
    code = highlight("f(x) + 1", PythonLexer(), HtmlFormatter())
    assert '<span class="p">(</span>' in code
    assert corrected(code) == (
        '<div class="highlight"><pre><span></span>f(x) <span class="o">+</span> '
        '<span class="mi">1</span>\n</pre></div>\n'
    )
    assert corrected('<dt>Fix<span class="colon">:</span></dt>') == "<dt>Fix:</dt>"


def test_parameter_list_is_a_list():
    line = '<dd><em class="sig-param"><span>a</span></em>,</dd>\n'
    html = corrected(f"(</span>\n\n<dl>\n{line}{line}</dl>\n\n<span>)")
    assert html.count("<li>") == html.count("</li>") == 2
    assert "<dl>" not in html
    fields = "<dl>\n<dt>a</dt><dd>b</dd>\n</dl>"
    assert corrected(fields) == fields


def test_blocks_leave_their_paragraph():
    text, first, item, last = (nodes.Text(word) for word in ("name – ", "first", "item", "last"))
    entries = nodes.bullet_list("", nodes.list_item("", nodes.paragraph("", "", item)))
    inner = [nodes.paragraph("", "", first), entries, nodes.paragraph("", "", last)]
    document = new_document("")
    document += nodes.paragraph("", "", text, *inner)
    html_fixes.split_paragraphs(None, document, "page")
    assert [type(node) for node in document] == [
        nodes.paragraph,
        nodes.bullet_list,
        nodes.paragraph,
    ]
    assert [node.astext() for node in document] == ["name – first", "item", "last"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('href="a/b.html"', 'href="/m/a/b.html"'),
        ('src="./_static/x.js?v=1"', 'src="/m/_static/x.js?v=1"'),
        ('data-content_root="./"', 'data-content_root="/m/"'),
        ('action="search.html"', 'action="/m/search.html"'),
        ('href="#main"', 'href="#main"'),
        ('href="https://example.org/"', 'href="https://example.org/"'),
        ('href="mailto:a@example.org"', 'href="mailto:a@example.org"'),
        ('href="/root.html"', 'href="/root.html"'),
    ],
)
def test_404_addresses_become_absolute(before, after):
    assert absolute(f"<a {before}>", "/m/") == f"<a {after}>"


def test_assets_named_in_the_list_exist():
    """A renamed asset would come back to every page."""
    import sphinx_copybutton
    import sphinx_design

    folders = [Path(package.__file__).parent for package in (sphinx_copybutton, sphinx_design)]
    folders += [Path(gen_rst.__file__).parent, Path(sphinx.__file__).parent / "themes", STATIC]
    names = {path.name for folder in folders for path in folder.rglob("*") if path.is_file()}
    names |= {name.removesuffix("_t") for name in names}
    assert (html_fixes.NEEDED_FOR.keys() | html_fixes.UNUSED) - names == set()


@pytest.mark.parametrize(
    ("made", "text", "language", "expected"),
    [
        (nodes.literal_block, "ValueError: " + "long " * 20, "none", ["has-long-lines"]),
        (nodes.literal_block, "x = 1  # " + "long " * 20, "python", []),
        (nodes.literal_block, "x = 1\ny = 2", "python", []),
        (nodes.literal_block, "a table\nof some columns", "none", []),
        (nodes.doctest_block, ">>> f()\n" + "long " * 20, None, ["has-long-lines"]),
        (nodes.doctest_block, ">>> f()  # " + "long " * 20 + "\n1", None, []),
    ],
)
def test_printed_lines_that_no_block_has_room_for_are_marked(made, text, language, expected):
    block = made(text, text, **({"language": language} if language else {}))
    html_fixes.mark_long_lines(None, nodes.section("", block))
    assert block["classes"] == expected
