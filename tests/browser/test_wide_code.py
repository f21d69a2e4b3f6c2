"""Code: one size of letters, and where it is wider than its block, no scrolling on a desktop."""

import re

import pytest

# What a fold holds is measured, too.
BEYOND = """() => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
    return [...document.querySelectorAll(".bd-article dl.py pre")]
        .filter((e) => e.scrollWidth > e.clientWidth + 1)
        .map((e) => e.textContent.split("\\n").sort((a, b) => b.length - a.length)[0]);
}"""


def test_the_examples_of_docstrings_fit_a_desktop(open_page, site, site_url):
    def longest(path):
        blocks = re.findall(r"<pre\b.*?</pre>", path.read_text("utf-8"), re.DOTALL)
        lines = (line for one in blocks for line in re.sub("<[^>]*>", "", one).splitlines())
        return max(map(len, lines), default=0)

    widest = sorted((site / "reference" / "api").glob("*.html"), key=longest)[-6:]
    assert longest(widest[0]) > 100
    page, said = open_page(width=1280), []
    for path in widest:
        page.goto(f"{site_url}reference/api/{path.name}")
        said += [f"{path.name}: {line}" for line in page.evaluate(BEYOND)]
    assert not said, "\n".join(["", *said])


def test_a_line_that_goes_on_is_copied_as_one(at):
    page = at("reference/api/torchrl.modules.MLP.html", width=1280)
    block = page.locator(".bd-article dl.py pre", has_text="returns a view of the output").first
    lines = block.inner_text().rstrip("\n").splitlines()
    assert any(len(line) > 110 for line in lines)
    rows = block.evaluate("""(e) => {
        const { lineHeight, paddingTop, paddingBottom } = getComputedStyle(e);
        const [line, above, below] = [lineHeight, paddingTop, paddingBottom].map(parseFloat);
        return (e.clientHeight - above - below) / line;
    }""")
    assert rows > len(lines) + 0.5


@pytest.mark.parametrize("width", [390, 1280])
def test_all_code_of_a_page_has_letters_of_one_size(open_page, site_url, sample, width):
    """Executed or quoted, in a fold, a list or a box, with short lines or long ones."""
    page, sizes = open_page(width=width), {}
    for name in (
        sample["home"],
        sample["tutorial"],
        sample["api"],
        "performance/replay_buffers.html",
        "reference/doctor.html",
        "tutorials/debugging/lstm_forgets_every_step.html",
    ):
        page.goto(site_url + name)
        found = "all => all.map((e) => getComputedStyle(e).fontSize)"
        for size in page.locator("article pre").evaluate_all(found):
            sizes.setdefault(size, set()).add(name)
    assert len(sizes) == 1, sizes
