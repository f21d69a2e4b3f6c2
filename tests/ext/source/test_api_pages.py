"""The API section: pages from one list, relations both ways, upstream's words kept honest."""

import ast
import inspect
import re
import textwrap

import pytest
from sphinx.errors import ExtensionError
from torchrl.collectors import MultiAsyncCollector, MultiCollector
from torchrl.data import Composite, RandomSampler
from torchrl.envs import TransformedEnv

from docs._ext.source.api_pages import (
    FOLDER,
    constructor_signature,
    load_catalog,
    page_text,
    related_text,
    summary,
)
from docs._ext.source.lookup import locate
from docs._ext.support import galleries
from tests.support import ROOT, SITE
from tests.support.small_site import SmallSite

STACK = ("torchrl", "tensordict")
CATALOG = load_catalog(ROOT / "docs" / "reference" / "api")


# -- The lists of this site --------------------------------------------------


@pytest.mark.parametrize("relation", CATALOG.relations, ids=lambda relation: relation["title"])
def test_members_of_a_relation_link_to_each_other(relation):
    members = list(relation["members"])
    for one in members:
        text = related_text(CATALOG, CATALOG.page(one))
        for other in members:
            if CATALOG.page(other) != CATALOG.page(one):
                assert f"<{other}>`" in text or f":doc:`{other}`" in text, (one, other)


def test_the_compact_observation_parts_are_related():
    relation = CATALOG.relations[0]["members"]
    assert {
        "torchrl.collectors.Collector",
        "torchrl.collectors.MultiCollector",
        "torchrl.collectors.MultiSyncCollector",
        "torchrl.collectors.MultiAsyncCollector",
        "torchrl.envs.transforms.NextStateReconstructor",
        "torchrl.envs.transforms.NextObservationDelta",
        "torchrl.envs.transforms.MultiStepTransform",
        "torchrl.data.MultiStep",
        "torchrl.objectives.value.ValueEstimatorBase._sanitize_next_obs_nan",
        "/tutorials/memory/memory_efficient_rl",
        "/tutorials/memory/missing_next_observations",
    } <= set(relation)


def imported_by_tutorials():
    """``module.name`` of what each tutorial imports from the stack."""
    for file in galleries.scripts(ROOT):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and re.match(
                r"(torchrl|tensordict)\b", node.module
            ):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_what_a_tutorial_imports_has_a_page():
    pages = {locate(symbol).definition for symbol in CATALOG.symbols}
    found = {name: locate(name) for name in imported_by_tutorials()}
    missing = [
        name
        for name, location in found.items()
        if location.kind in ("class", "function") and location.definition not in pages
    ]
    assert missing == [], "add these to docs/reference/api/symbols.toml"


def test_a_note_is_part_of_its_page():
    notes = sorted((CATALOG.folder / "notes").glob("*.rst"))
    assert notes
    for note in notes:
        assert f".. include:: notes/{note.name}" in page_text(CATALOG, note.stem, used=[])


@pytest.mark.parametrize(
    ("cls", "parameters"),
    [
        # hands on to its base
        (MultiAsyncCollector, list(inspect.signature(MultiCollector.__init__).parameters)[1:]),
        # is made through a metaclass, and has overloads
        (TransformedEnv, ["base_env", "transform", "cache_specs", "auto_unwrap", "kwargs"]),
        (RandomSampler, []),  # has no constructor
        (Composite, list(inspect.signature(Composite.__init__).parameters)[1:]),  # args and names
    ],
)
def test_where_a_class_takes_anything_the_signature_is_that_of_its_constructor(cls, parameters):
    assert list(constructor_signature(cls).parameters) == parameters


@pytest.mark.site
def test_no_page_says_that_a_class_takes_anything():
    pages = [SITE / FOLDER / f"{symbol}.html" for symbol in CATALOG.symbols]
    signatures = {page.stem: short_and_whole(page.read_text(encoding="utf-8")) for page in pages}
    classes = {
        name: [one for one in found if one.startswith("class")]
        for name, found in signatures.items()
    }
    assert any(classes.values())
    assert [name for name, found in classes.items() if "(*args,**kwargs)" in "".join(found)] == []


# -- A site made for the test ------------------------------------------------

PACKAGE = {
    "tiny/__init__.py": """
        from tiny.parts import Engine, Wagon
        """,
    "tiny/parts.py": """
        class Engine:
            \"\"\"Pulls a :class:`Wagon`, see :ref:`nowhere` and :class:`gone.Thing`. More.

            __emphatic__ words.
            \"\"\"

            def run(self, x: int = 1):
                \"\"\"Run, unlike :meth:`walk`.\"\"\"

        class Wagon:
            \"\"\"Is pulled by :class:`tiny.parts.Engine`.\"\"\"
        """,
    "tiny-0.dist-info/METADATA": "Name: tiny\nVersion: 1.2.0\n",
}
PAGES = {
    "conf.py": """
        extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "docs._ext.source.api_pages"]
        extensions += ["sphinx_design"]
        source_repositories = {"tiny": ("me/tiny", "v{version}")}
        exclude_patterns = ["reference/api/notes"]
        """,
    "index.rst": """
        Home
        ====

        :class:`tiny.Engine`

        .. toctree::

           guide
           reference/api/index
        """,
    "guide.rst": """
        Guide
        =====
        """,
    "reference/api/index.rst": """
        API
        ===

        .. api-index::
        """,
    "reference/api/symbols.toml": """
        [[subject]]
        title = "Parts"
        about = "What a train is made of."

        [subject.symbols]
        "tiny.Engine" = ["run"]
        "tiny.Wagon" = []
        """,
    "reference/api/relations.toml": """
        [[relation]]
        title = "A train"
        why = "One pulls the other."

        [relation.members]
        "tiny.Engine.run" = "moves"
        "tiny.Wagon" = "follows"
        "/guide" = "explains"
        """,
    "reference/api/docstring_patches.toml": """
        [[patch]]
        symbol = "tiny.Engine"
        find = '__emphatic__'
        replace = '**emphatic**'
        why = "underscores are a hyperlink"
        """,
    "reference/api/notes/tiny.Wagon.rst": """
        .. upstream-says:: Is pulled by

           It rolls, with or without an :class:`tiny.Engine`.
        """,
}


class Site(SmallSite):
    """The pages, and beside them the package, which lies in a folder of its own."""

    def write(self, sources):
        super().write({name: textwrap.dedent(text).lstrip("\n") for name, text in sources.items()})

    def build(self):
        return super().build(PYTHONPATH=f"{self.docs.parent / 'site'}:{ROOT}", PATH="")


@pytest.fixture
def site(tmp_path):
    package = {f"../site/{name}": text for name, text in PACKAGE.items()}
    return Site(tmp_path, package | PAGES)


@pytest.mark.slow
def test_the_pages(site):
    site.built()
    engine, wagon = site.page(f"{FOLDER}/tiny.Engine"), site.page(f"{FOLDER}/tiny.Wagon")
    guide, index = site.page("guide"), site.page(f"{FOLDER}/index")
    # title, signature, docstring, source
    assert "<h1>Engine" in engine
    assert "emphatic</strong>" in engine
    source = r'viewcode-link[^>]* href="https://github\.com/me/tiny/blob/v1\.2\.0/tiny/parts\.py#L'
    assert len(re.findall(source, engine)) == 2  # the class and its method
    # upstream's reference to a listed symbol under another path is a link, to anything else text
    assert 'href="tiny.Engine.html#tiny.Engine" title="tiny.Engine"' in wagon
    assert "nowhere" in engine
    assert "gone.Thing" in engine
    # relations, in all directions
    assert 'href="tiny.Engine.html#tiny.Engine.run"' in wagon
    assert 'href="../../guide.html"' in wagon
    assert 'href="tiny.Wagon.html#tiny.Wagon"' in engine
    assert 'href="../../guide.html"' in engine
    assert 'href="reference/api/tiny.Engine.html#tiny.Engine.run"' in guide
    assert 'href="reference/api/tiny.Wagon.html#tiny.Wagon"' in guide
    # the correction and the summary
    assert "The docstring says “Is pulled by”" in wagon
    # the subject is a page of its own, in between
    parts = site.page(f"{FOLDER}/parts")
    for listing in (index, parts):
        assert "Pulls a <code" in listing
        assert "More." not in listing
    assert 'rel="next" title="Parts" href="parts.html"' in index
    assert 'rel="prev" title="Parts" href="parts.html"' in engine


@pytest.mark.slow
def test_a_page_starts_with_the_signature_in_short(site):
    docstring = '    """Is pulled by :class:`tiny.parts.Engine`."""\n'
    method = "\n    def __init__(self, load: int = 3, *rest, empty: bool): ...\n"
    site.edit("../site/tiny/parts.py", docstring, docstring + method)
    site.built()
    html = site.page(f"{FOLDER}/tiny.Wagon")
    signatures = re.findall(r"(?s)<dt class=\"sig .*?</dt>", html)
    short, whole = (re.sub(r"<[^>]+>|\s", "", text) for text in signatures)
    assert "(load=3,*rest,empty)" in short
    assert "(load:int=3,*rest,empty:bool)" in whole
    assert html.index("<h1>") < html.index(signatures[0]) < html.index("The docstring says")
    assert html.count('id="tiny.Wagon"') == 1


IS_PULLED = '    """Is pulled by :class:`tiny.parts.Engine`."""\n'
LONG = """
    def __init__(self, load, *, a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9, j=10, empty=False): ...
"""
TAKES_ANYTHING = """
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, load=3): ...
"""
HANDS_ON = """class Meta(type):
    def __call__(cls, *args, remote=None, **kwargs):
        return super().__call__(*args, **kwargs)


class Wagon(metaclass=Meta):
"""


def short_and_whole(html):
    signatures = re.findall(r"(?s)<dt class=\"sig .*?</dt>", html)
    return [re.sub(r"<[^>]+>|\s", "", text) for text in signatures]


@pytest.mark.slow
def test_a_long_signature_is_cut_and_leads_to_the_whole(site):
    site.edit("../site/tiny/parts.py", IS_PULLED, IS_PULLED + LONG)
    site.built()
    html = site.page(f"{FOLDER}/tiny.Wagon")
    short, whole = short_and_whole(html)
    assert "(load,*,a=1,b=2,c=3,d=4,e=5,f=6,g=7,4more)" in short
    assert "j=10,empty=False)" in whole
    assert re.search(r'href="#tiny.Wagon"><span class="pre">4</span>', html)
    # the usual ones, in their order, and the star that says how they are passed
    symbols = "reference/api/symbols.toml"
    site.edit(symbols, '"tiny.Wagon" = []\n', '"tiny.Wagon" = []\n[usual]\n"tiny.Wagon" = ["j"]\n')
    site.built()
    assert "(*,j=10,11more)" in short_and_whole(site.page(f"{FOLDER}/tiny.Wagon"))[0]
    site.edit(symbols, '["j"]', '["k"]')
    assert "symbols.toml: tiny.Wagon has no parameter k" in site.fails()


@pytest.mark.slow
def test_a_class_that_takes_nothing_has_parentheses(site):
    site.built()
    for signature in short_and_whole(site.page(f"{FOLDER}/tiny.Wagon")):
        assert "tiny.Wagon()" in signature


@pytest.mark.slow
def test_where_new_takes_anything_the_signature_is_that_of_init(site):
    site.edit("../site/tiny/parts.py", IS_PULLED, IS_PULLED + TAKES_ANYTHING)
    site.built()
    for signature in short_and_whole(site.page(f"{FOLDER}/tiny.Wagon")):
        assert "Wagon(load=3)" in signature


@pytest.mark.slow
def test_where_a_metaclass_hands_on_the_signature_is_that_of_init(site):
    site.edit(
        "../site/tiny/parts.py", IS_PULLED, IS_PULLED + "\n    def __init__(self, load=3): ...\n"
    )
    site.edit("../site/tiny/parts.py", "class Wagon:\n", HANDS_ON)
    site.built()
    for signature in short_and_whole(site.page(f"{FOLDER}/tiny.Wagon")):
        assert "Wagon(load=3)" in signature


@pytest.mark.slow
def test_a_default_that_is_no_python_leaves_the_parameters_apart(site):
    method = "\n    def __init__(self, kind=Engine, load: int = property()): ...\n"
    site.edit("../site/tiny/parts.py", IS_PULLED, IS_PULLED + method)
    site.built()
    short, whole = short_and_whole(site.page(f"{FOLDER}/tiny.Wagon"))
    assert "(kind=Engine,load=...)" in short
    assert "(kind=Engine,load:int=...)" in whole


CORRECTED = """
    Guide
    =====

    .. upstream-says:: ``fast``: as it likes
       :of: tiny.Engine.run
       :do: Wait.
       :instead: slow

       It is slow.

       >>> 1
       1

       Very slow.
    """
ARGUMENTS = """

        Args:
            x: One of

                - ``fast``: as it likes
                - ``slow``: not

        Returns:
            int: Its speed.
        """


@pytest.mark.slow
def test_words_that_are_corrected_are_marked_in_the_docstring(site):
    """On the page of the symbol, wherever the correction is; in a list inside a field too."""
    site.write({"guide.rst": CORRECTED})
    site.edit("../site/tiny/parts.py", 'unlike :meth:`walk`."', f'unlike :meth:`walk`.{ARGUMENTS}"')
    site.built()
    wagon, engine = site.page(f"{FOLDER}/tiny.Wagon"), site.page(f"{FOLDER}/tiny.Engine")
    assert '<span class="upstream-erratum">Is pulled by</span>' in wagon
    assert 'href="#upstream-says-1">see erratum</a>' in wagon
    marked = re.findall(r'<span class="upstream-erratum">(.*?) <a [^>]*href="([^"]*)"', engine)
    assert [(re.sub("<[^>]+>", "", words), link) for words, link in marked] == [
        ("fast: as it likes", "../../guide.html#upstream-says-1")
    ]
    # what happens and what to do in sight, the example and the better words folded
    note = re.search(r'(?s)<div class="[^"]*upstream-says.*?</details>', site.page("guide"))[0]
    shown, proof = note.split("<details")
    for text in ("It is slow.", "What to do:</strong> Wait.", "Very slow."):
        assert text in shown
    assert "It could say: “slow”" in proof
    # a correction of other words reaches the page of the symbol, where a field has no colon
    site.edit("guide.rst", "``fast``: as it likes", "int: Its speed")
    site.built()
    engine = site.page(f"{FOLDER}/tiny.Engine")
    assert '<span class="upstream-erratum">Its speed</span>' in engine


@pytest.mark.slow
def test_a_short_reference_to_a_method_of_several_classes_is_text(site):
    """Sphinx asks every class for one of that name, and warns that there are several."""
    site.edit(
        "../site/tiny/parts.py",
        'class Wagon:\n    """Is pulled by :class:`tiny.parts.Engine`."""\n',
        'class Wagon:\n    """Is pulled by :class:`tiny.parts.Engine`."""\n\n'
        '    def run(self):\n        """Follow."""\n\n'
        'class Signal:\n    """Stands beside :meth:`.run`."""\n',
    )
    site.edit("../site/tiny/__init__.py", "Engine, Wagon", "Engine, Signal, Wagon")
    site.edit("reference/api/symbols.toml", '"tiny.Wagon" = []', '"tiny.Signal" = []')
    site.edit("reference/api/symbols.toml", '"tiny.Sig', '"tiny.Wagon" = ["run"]\n"tiny.Sig')
    site.built()
    assert re.search(
        r"Stands beside <code[^>]*><span[^>]*>\.?run", site.page(f"{FOLDER}/tiny.Signal")
    )


@pytest.mark.slow
def test_a_subject_removed_is_a_page_gone(site):
    site.built()
    site.edit("reference/api/symbols.toml", 'title = "Parts"', 'title = "Pieces of it"')
    site.built()
    for root in (site.docs / FOLDER, site.html / FOLDER):
        assert [path.stem for path in root.glob("p*")] == ["pieces-of-it"]


@pytest.mark.slow
def test_a_line_removed_is_a_page_gone(site):
    site.built()
    site.edit("reference/api/symbols.toml", '"tiny.Wagon" = []\n', "")
    site.edit("reference/api/relations.toml", '"tiny.Wagon" = "follows"\n', "")
    (site.docs / "reference/api/notes/tiny.Wagon.rst").unlink()
    site.built()
    assert not (site.docs / FOLDER / "tiny.Wagon.rst").exists()
    assert not (site.html / FOLDER / "tiny.Wagon.html").exists()
    for page in (f"{FOLDER}/index", f"{FOLDER}/tiny.Engine", "guide"):
        assert "tiny.Wagon" not in site.page(page), page


@pytest.mark.slow
def test_a_changed_relation_reaches_every_member(site):
    site.built()
    site.edit("reference/api/relations.toml", "One pulls", "One tows")
    site.built()
    for page in (f"{FOLDER}/tiny.Engine", f"{FOLDER}/tiny.Wagon", "guide"):
        assert "One tows the other" in site.page(page), page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "../site/tiny/parts.py",
            "__emphatic__",
            "emphatic",
            r"docstring_patches\.toml:2: WARNING: the docstring of tiny\.Engine no longer matches",
        ),
        (
            "../site/tiny/parts.py",
            "Is pulled by",
            "Follows",
            r"tiny\.Wagon\.rst:1: WARNING: the docstring of tiny\.Wagon no longer says 'Is pulled",
        ),
        (
            "reference/api/notes/tiny.Wagon.rst",
            "Is pulled by",
            "Is pulled by\n   :of: tiny.Waggon",
            r"tiny\.Wagon\.rst:1: ERROR: upstream-says: tiny has no 'Waggon'",
        ),
        (
            "reference/api/notes/tiny.Wagon.rst",
            "It rolls, with or without an :class:`tiny.Engine`.",
            "",
            r"tiny\.Wagon\.rst:1: ERROR: Content block expected for the \"upstream-says\"",
        ),
        (
            "reference/api/notes/tiny.Wagon.rst",
            "tiny.Engine",
            "tiny.Engin",
            r"tiny\.Wagon\.rst:3: WARNING: py:class reference target not found: tiny\.Engin\b",
        ),
        (
            "index.rst",
            "tiny.Engine",
            "Engine",
            r"index\.rst:4: WARNING: py:class reference target not found: Engine\b",
        ),
        (
            "../site/tiny/__init__.py",
            "Engine, Wagon",
            "Engine",
            r"symbols\.toml:7: tiny has no 'Wagon' in tiny .*; did you mean tiny\.parts\.Wagon",
        ),
        (
            "reference/api/relations.toml",
            "tiny.Wagon",
            "tiny.Waggon",
            r"relations\.toml:7: tiny\.Waggon is not in symbols\.toml; did you mean tiny\.Wagon\?",
        ),
        (
            "reference/api/relations.toml",
            "/guide",
            "/guild",
            r"relations\.toml:8: WARNING: there is no page guild",
        ),
    ],
)
def test_drift_and_slips_stop_the_build(site, file, old, new, message):
    site.edit(file, old, new)
    said = site.fails()
    assert re.search(message, said), said


def test_a_broken_list_is_named(tmp_path):
    (tmp_path / "symbols.toml").write_text("[[subject\n")
    with pytest.raises(ExtensionError, match=r"symbols\.toml"):
        load_catalog(tmp_path)


def test_a_summary_keeps_formulas_and_names_alone():
    assert "TD(:math:`" in summary("torchrl.objectives.value.TDLambdaEstimator")
    assert "around the ``ReplayBuffer``" in summary("torchrl.data.TensorDictReplayBuffer")


def test_lessons_and_symptoms_are_listed_apart():
    symbol = next(iter(CATALOG.symbols))
    text = page_text(
        CATALOG,
        symbol,
        ["tutorials/memory/lesson", "tutorials/debugging/one", "tutorials/debugging/two"],
    )
    assert ".. minigallery::\n\n   ../tutorials/memory/lesson.py\n\n" in text
    assert ".. dropdown:: 2 pages of the debugging map use it" in text
    assert "   .. rst-class:: symptom-items\n\n   * :doc:" in text
    assert "   * :doc:`/tutorials/debugging/two` :effect:`two`\n" in text
    alone = page_text(CATALOG, symbol, ["tutorials/debugging/one"])
    assert ".. dropdown:: 1 page of the debugging map uses it" in alone
    assert "Symptoms" not in page_text(CATALOG, symbol, ["how-to/lesson"])
    assert "Used in" not in page_text(CATALOG, symbol, ["tutorials/debugging/one"])
