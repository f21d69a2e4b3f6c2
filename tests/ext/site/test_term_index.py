"""The index of the glossary from A to Z."""

from docs._ext.site.term_index import by_letter, markup

TERMS = [("worker", "term-worker"), ("_AcceptedKeys", "term-AcceptedKeys"), ("TED", "term-TED")]
TERMS += [("a <b>", "term-a-b"), ("two words", "term-two-words"), ("1-step", "term-1-step")]


def test_a_term_is_filed_under_its_first_letter_or_digit():
    names = {letter: [name for name, _ in own] for letter, own in by_letter(TERMS).items()}
    assert names == {
        "0-9": ["1-step"],
        "A": ["a <b>", "_AcceptedKeys"],
        "T": ["TED", "two words"],
        "W": ["worker"],
    }
    assert list(names) == ["0-9", "A", "T", "W"]


def test_the_order_does_not_depend_on_that_of_the_page():
    assert by_letter(TERMS) == by_letter(reversed(TERMS))


def test_the_strip_leads_to_the_lines_and_these_to_the_terms():
    html = markup(("Words & terms", "top"), by_letter(TERMS))
    strip, _, index = html.partition("</nav>")
    assert '<a href="#top">Words &amp; terms</a> <a href="#terms-0-9">0-9</a>' in strip
    assert '<p id="terms-t"><b>T</b> <a href="#term-TED">TED</a>, ' in index
    assert '<a href="#term-a-b">a &lt;b&gt;</a>' in index
    assert index.count("<a ") == len(TERMS)
