"""Each entry of the errata page is whole, stands in the summary, and retires when it is fixed."""

import doctest
import inspect
import re
import textwrap
import threading
from types import SimpleNamespace

import pytest
import torch
import torchrl.modules.tensordict_module.rnn as rnn
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector, MultiCollector
from torchrl.data import SliceSampler
from torchrl.envs import TensorDictPrimer
from torchrl.modules import GRUModule, LSTMModule, ValueOperator, set_recurrent_mode
from torchrl.objectives import value as estimators
from torchrl.objectives.value import GAE, TD0Estimator
from torchrl.objectives.value.advantages import ValueEstimatorBase

from tests.ext.source.test_api_pages import FOLDER, ROOT, site  # noqa: F401 - a fixture
from tests.support.claims import guards

PAGE = ROOT / "docs" / "reference" / "upstream_errata.rst"
TEXT = PAGE.read_text(encoding="utf-8")
NOTES = sorted((ROOT / "docs" / "reference" / "api" / "notes").glob("*.rst"))
DIRECTIVE = ".. upstream-says:: "


def entries(text):
    """Each correction of a page, from the directive to the next one or to the next section."""
    body = re.sub(r"^\S.*\n(~{3,}|-{3,}|={3,})$", "\x00", text, flags=re.MULTILINE)
    for part in body.split("\x00"):
        yield from (DIRECTIVE + piece for piece in part.split(DIRECTIVE)[1:])


OWN = list(entries(TEXT))


# -- The page ----------------------------------------------------------------


def test_the_page_has_entries():
    assert len(OWN) >= 30


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.splitlines()[0][19:60])
def test_an_entry_is_whole(entry):
    """Words, a run, what we say of it, what to do, and what the sentence could say."""
    assert re.search(r">>> |\.\. evidence-table:: |\.\. literalinclude:: \.\./evidence/", entry)
    assert re.search(r"\n\n   (?!>>> |\.\. |:[\w-]+: )\S", entry)
    assert ":do: " in entry
    assert ":instead: " in entry
    assert (":page: " in entry) != (":of: " in entry)


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_a_note_says_what_the_words_could_be(note):
    for entry in entries(note.read_text(encoding="utf-8")):
        assert ":instead: " in entry


def test_every_section_with_an_entry_is_headed_by_one():
    """A heading of the third level has a correction below it, so the summary has it too."""
    sections = re.split(r"\n(?=[^\n]+\n~{3,}\n)", TEXT)[1:]
    assert len(sections) >= 25
    for section in sections:
        assert DIRECTIVE in section, section.splitlines()[0]


# -- An entry retires --------------------------------------------------------


def failing_sections(monkeypatch, target, name, value):
    """Run the examples of the page with one thing of torchrl fixed.

    Of each section with a failing example, the first words that it corrects.
    """
    test = doctest.DocTestParser().get_doctest(TEXT, {}, "errata", str(PAGE), 0)
    starts, line = [], 0
    for section in re.split(r"\n(?=\S.*\n(?:~{3,}|-{3,})\n)", TEXT):
        starts.append((line, section.partition(DIRECTIVE)[2].partition("\n")[0]))
        line += section.count("\n") + 1
    failed = []

    class Runner(doctest.DocTestRunner):
        def report_failure(self, out, test, example, got):
            failed.append([words for line, words in starts if line < example.lineno][-1])

        def report_unexpected_exception(self, out, test, example, exc_info):
            self.report_failure(out, test, example, exc_info)

    monkeypatch.setattr(target, name, value)
    Runner(verbose=False).run(test, out=lambda text: None)
    return set(failed)


def iff_devices_differ(collector):
    plain = collector._apply_env_device

    def apply(self, *args):
        plain(self, *args)
        self._cast_to_policy_device = self.policy_device != self.env_device

    return apply


class GlobalMode:
    """A switch that all threads share, as the comment says."""

    mode = None

    def get_mode(self):
        return self.mode

    def set_mode(self, mode):
        self.mode = mode


class PerThread(threading.local, GlobalMode):
    """A switch that compiled code reads as other code does."""


def fall_back(self, *args, **options):
    """As if the Triton backend were left out where Triton is not there."""
    if not rnn._has_triton:
        options.pop("recurrent_backend", None)
    PLAIN_LSTM(self, *args, **options)


def renamed_keys(self, **keys):
    return PLAIN_SET_KEYS(self, **{name.removesuffix("_key"): key for name, key in keys.items()})


PLAIN_SET_KEYS = ValueEstimatorBase.set_keys
PLAIN_INIT_POLICY = Collector._init_policy
PLAIN_SETUP = Collector._maybe_setup_policy_env_transforms
PLAIN_LSTM = LSTMModule.__init__
PLAIN_RESET = TensorDictPrimer._reset_func


def stale_states(self, tensordict, tensordict_reset):
    """Later resets do not clear the entries, unless there is a flag beside them."""
    out = PLAIN_RESET(self, tensordict, tensordict_reset)
    if tensordict_reset.get("is_init", None) is None and hasattr(self, "was_reset"):
        for key in self.primers.keys(True, True):
            out.set(key, torch.ones_like(out.get(key)))
    self.was_reset = True
    return out


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("target", "name", "value", "words"),
    [
        (
            Collector,
            "_apply_env_device",
            iff_devices_differ(Collector),
            "``True`` iff ``policy_device != env_device``",
        ),
        (rnn, "recurrent_mode_state_manager", GlobalMode(), "Process-wide flag"),
        (
            ValueEstimatorBase,
            "set_keys",
            renamed_keys,
            "use set_keys(advantage_key=advantage_key) instead",
        ),
        (
            Collector,
            "_maybe_setup_policy_env_transforms",
            lambda self, env, policy: (
                PLAIN_SETUP(self, env, policy) if self._auto_register_policy_transforms else env
            ),
            "is missing transforms required by the policy",
        ),
        (
            Collector,
            "_should_use_random_frames",
            lambda self: self.init_random_frames > 0,
            "this results in more init_random_frames than requested",
        ),
        (
            Collector,
            "_init_policy",
            lambda self, policy, policy_factory, *args: PLAIN_INIT_POLICY(
                self, policy or policy_factory, None, *args
            ),
            "Auto-wrapping is skipped",
        ),
        (
            rnn,
            "recurrent_mode_state_manager",
            PerThread(),
            "Process-wide flag",
        ),
        (LSTMModule, "__init__", fall_back, "Older installations fall back transparently"),
        (
            GAE,
            "forward",
            set_recurrent_mode(True)(GAE.forward),
            "the default inside TorchRL loss / advantage code",
        ),
        (
            SliceSampler,
            "_maybe_emit_init_marker",
            lambda self, *args: None,
            "contiguous time chunks with ``is_init`` boundaries preserved",
        ),
        (
            TensorDictPrimer,
            "_reset_func",
            stale_states,
            "Every reset of recurrent state in TorchRL ultimately ties back to this flag.",
        ),
        (
            estimators,
            "TD0Estimate",
            TD0Estimator,
            "is deprecated, please use",
        ),
    ],
)
def test_a_claim_that_becomes_true_fails_its_example(monkeypatch, target, name, value, words):
    assert failing_sections(monkeypatch, target, name, value) == {words}


# -- What an example would only repeat ---------------------------------------


@guards("multi-collector-whole-batches")
def test_the_multi_process_collector_warns_about_total_frames():
    stub = SimpleNamespace()
    with pytest.warns(UserWarning, match="This means 2 additional frames will be collected"):
        MultiCollector._setup_multi_total_frames(stub, 10, 4, 4)
    assert stub.total_frames == 10


# -- The directives ----------------------------------------------------------

ERRATA = """
    Errata
    ======

    .. upstream-says:: rolls on its own
       :of: tiny.parts.pull
       :kind: comment
       :instead: is pulled

       It is pulled: see there.

    .. upstream-says:: Wagons push
       :page: https://tiny.example/wagons.html

       They follow. And more.

    .. upstream-claims::
    """
COMMENTED = '''
        def pull():
            """Pull."""
            # a wagon rolls
            # on its own
            return 1
        '''


@pytest.fixture
def errata(site):  # noqa: F811
    site.write({"errata.rst": ERRATA})
    site.edit("index.rst", "   guide\n", "   guide\n   errata\n")
    site.append("../site/tiny/parts.py", textwrap.dedent(COMMENTED))
    return site


def table(site):  # noqa: F811
    page = site.page("errata")
    body = page[page.index("upstream-claims") :].partition("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)[1:]
    return [
        [re.sub(r"<[^>]*>", "", part).strip() for part in re.findall(r"<td .*?</td>", row, re.S)]
        for row in rows
    ]


@pytest.mark.slow
def test_the_summary_has_a_row_for_every_correction(errata):
    result = errata.build()
    assert result.returncode == 0, result.stderr
    assert table(errata) == [
        ["“rolls on its own”", "comment of pull", "It is pulled"],
        ["“Wagons push”", "page wagons", "They follow"],
        ["“Is pulled by”", "docstring of Wagon", "It rolls, with or without an tiny.Engine"],
    ]
    page = errata.page("errata")
    for target in ("#upstream-says-1", "#upstream-says-2"):
        assert f'href="{target}"' in page
    assert f'href="{FOLDER}/tiny.Wagon.html#upstream-says-1"' in page
    assert 'href="https://tiny.example/wagons.html"' in page
    assert "The comment says “rolls on its own”" in page
    assert "It could say: “is pulled”" in page
    # a correction on another page changes the table in a repeated build
    errata.edit("reference/api/notes/tiny.Wagon.rst", "It rolls,", "It waits,")
    assert errata.build().returncode == 0
    assert table(errata)[-1][-1].startswith("It waits")


@pytest.mark.slow
def test_words_that_are_gone_retire_the_entry(errata):
    errata.edit("../site/tiny/parts.py", "# on its own", "# when pulled")
    result = errata.build()
    assert result.returncode != 0
    assert "errata.rst:4: WARNING: the comment of tiny.parts.pull no longer says" in result.stderr
    assert "'rolls on its own'; delete the note or adapt it" in result.stderr


@guards("upstream-automated-optional", "upstream-omits-mistake")
def test_what_the_page_about_recurrent_state_leaves_out():
    arguments = inspect.signature(Collector.__init__).parameters
    assert arguments["auto_register_policy_transforms"].default is None
    size = {"input_size": 4, "hidden_size": 2, "in_key": "observation", "out_key": "embed"}
    head = ValueOperator(torch.nn.Linear(2, 1), in_keys=["embed"])
    flag = torch.zeros(1, 3, 1, dtype=torch.bool)
    state = torch.zeros(1, 3, 1, 2)
    row = {"observation": torch.ones(1, 3, 4), "is_init": flag, "recurrent_state": state}
    following = {**row, "reward": torch.ones(1, 3, 1), "done": flag, "terminated": flag}
    for backend in ("pad", "scan"):
        network = TensorDictSequential(GRUModule(**size, recurrent_backend=backend), head)
        data = TensorDict({**row, "next": following}, [1, 3])
        gae = GAE(gamma=0.9, lmbda=0.5, value_network=network)
        with set_recurrent_mode(True), torch.no_grad(), pytest.raises(RuntimeError):
            gae(data.clone())
        gae = GAE(gamma=0.9, lmbda=0.5, value_network=network, deactivate_vmap=True)
        with set_recurrent_mode(True), torch.no_grad():
            assert gae(data.clone())["advantage"].isfinite().all()


@guards("gru-same-words")
def test_both_modules_say_the_same_of_auto():
    for module in (LSTMModule, GRUModule):
        words = " ".join(module.__doc__.split())
        assert 'in eager mode and ``"scan"`` when called under' in words, module
