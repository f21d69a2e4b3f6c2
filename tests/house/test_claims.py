"""The decorator that ties a test to a sentence."""

import pytest

from tests.support.claims import guards, line_of

PAGE = "docs/reference/glossary.rst"
SENTENCE = "The number of environment steps that a collector puts into one batch."


def test_a_sentence_is_found_across_line_breaks():
    line = line_of(PAGE, "loop, :source:`ParallelEnv <torchrl.envs.ParallelEnv>` in processes.")
    assert line > line_of(PAGE, SENTENCE) > 1


def test_a_sentence_that_is_gone_fails():
    with pytest.raises(AssertionError, match=r"glossary\.rst does not say 'Collectors dance\.'"):
        guards(PAGE, "Collectors dance.")(lambda: None)()


def test_a_failure_names_page_line_and_sentence():
    @guards(PAGE, SENTENCE)
    def fails():
        assert not SENTENCE

    with pytest.raises(AssertionError) as failure:
        fails()
    note = f"This test guards {PAGE}:{line_of(PAGE, SENTENCE)}: {SENTENCE}"
    assert failure.value.__notes__ == [note]


def test_arguments_and_fixtures_pass_through(tmp_path):
    @guards(PAGE, SENTENCE)
    def takes(folder, *, name):
        return folder / name

    assert takes(tmp_path, name="a") == tmp_path / "a"
    assert takes.__name__ == "takes"


def test_a_missing_exception_is_named_too():
    @guards(PAGE, SENTENCE)
    def raises_nothing():
        with pytest.raises(ValueError, match="never"):
            pass

    with pytest.raises(pytest.fail.Exception) as failure:
        raises_nothing()
    assert SENTENCE in failure.value.__notes__[0]
