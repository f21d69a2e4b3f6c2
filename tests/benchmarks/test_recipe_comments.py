"""Comments of the recipes name pages of the manual, and what these pages have."""

import re

import pytest

from tests.support import ROOT
from tests.support.page_source import section_titles, source_of

RECIPES = sorted((ROOT / "benchmarks" / "recipes").glob("*.py"))
# A path and, in quotes, an anchor or a section: performance/checklist, "fused". One comment calls
# that page by its name alone.
NAMED = re.compile(
    r'\b((?:performance|reference|tutorials|how-to)/[\w/]*\w|(?<!/)checklist)(?:, "([^"]+)")?'
)


def named_in(text):
    """The pages that a script names, each with the item in quotes or ``""``."""
    joined = re.sub(r"\n\s*(?:# )?", " ", text)  # what one line begins, the next may end
    return {(f"/{page}", item) for page, item in NAMED.findall(joined)}


def problem(page, item):
    """What is wrong with one of them, or nothing."""
    page = "/performance/checklist" if page == "/checklist" else page
    source = source_of(page)
    if not source.is_file():
        return f"there is no page {page}"
    anchors = re.findall(r"^(?:# )?\.\. _([\w-]+):$", source.read_text(encoding="utf-8"), re.M)
    anchor = f"-{page.rpartition('/')[2]}-{item.lower()}"
    title = re.compile(rf"\b{re.escape(item)}\b", re.I)
    if any(one.endswith(anchor) for one in anchors) or any(map(title.search, section_titles(page))):
        return None
    return f"{page} has no {item!r}"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_comments_name_pages_and_what_they_have(recipe):
    found = {problem(*one) for one in named_in(recipe.read_text(encoding="utf-8"))}
    assert found - {None} == set()


def test_every_recipe_names_pages():
    scripts = [one for one in RECIPES if not one.stem.endswith(("contenders", "__init__"))]
    for script in scripts:
        assert named_in(script.read_text(encoding="utf-8")), script.stem


def test_a_page_or_an_item_that_is_not_there_is_noticed():
    text = """
        a = 1  # performance/nowhere
        # All parameters in one operator: performance/checklist,
        # "unfused". An index, no buffer: checklist, "index".
    """
    said = {problem(*one) for one in named_in(text)}
    assert said == {
        None,
        "there is no page /performance/nowhere",
        "/performance/checklist has no 'unfused'",
    }
