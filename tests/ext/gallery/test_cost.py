"""What the tutorials of the built site cost, in seconds of processor time."""

import json
import types

import pytest
from sphinx.config import Config
from sphinx.errors import ConfigError

from docs._ext.gallery import cost as gallery_cost
from docs._ext.support import galleries
from tests.support.fixture_site import ROOT


def stamped(folder, slowness=1.0, **costs):
    topic = folder / "topic"
    topic.mkdir()
    for name, cost in costs.items():
        stamp = {"cpu_seconds": cost, "slowness": slowness}
        (topic / f"{name}.stamp.json").write_text(json.dumps(stamp))
    return folder


def stamps(folder):
    """Of the built site, by script."""
    paths = sorted((ROOT / "docs" / folder).rglob("*.stamp.json"))
    return {path.name.removesuffix(".stamp.json"): json.loads(path.read_text()) for path in paths}


def test_costs_are_judged(tmp_path):
    generated = stamped(tmp_path, cheap=29.9, costly=30.1, excused=50.0, still=50.1, idle=0.0)
    excuses = {"topic/excused.py": (25, "r"), "topic/still.py": (25, "r")}
    costly, idle, still = gallery_cost.too_costly(generated, 15, excuses)
    assert costly.startswith("topic/costly.py took 30.1 s of processor time beside others,")
    assert "tutorial_cpu_budgets" in costly
    assert idle.startswith("topic/idle.py did not run")
    assert still.startswith("topic/still.py took 50.1 s of processor time beside others,")


def test_a_slow_machine_is_allowed_for(tmp_path):
    generated = stamped(tmp_path, slowness=3.0, cheap=89.9, costly=90.3)
    (costly,) = gallery_cost.too_costly(generated, 15, {})
    assert costly.startswith("topic/costly.py took 30.1 s")


def test_a_machine_is_as_slow_as_its_loop(monkeypatch):
    monkeypatch.setattr(gallery_cost, "LOOPS", 10 * gallery_cost.LOOPS)
    tenfold = gallery_cost.slowness()
    monkeypatch.undo()
    monkeypatch.setattr(gallery_cost, "LOOPS", 1)
    assert gallery_cost.slowness() == 1 < tenfold


@pytest.mark.parametrize(
    ("name", "entry", "said"),
    [
        ("tutorials/a/gone.py", (20, "r"), "a/gone.py does not exist; remove the entry"),
        ("tutorials/a/there.py", (20, " "), "must be"),
        ("tutorials/a/there.py", (31, "r"), "31 s is not between 15 and 30 s"),
        ("tutorials/a/there.py", (15, "r"), "15 s is not between 15 and 30 s"),
    ],
)
def test_excuses_are_checked(tmp_path, name, entry, said):
    (tmp_path / "tutorials" / "a").mkdir(parents=True)
    (tmp_path / "tutorials" / "a" / "there.py").touch()
    app = types.SimpleNamespace(srcdir=tmp_path / "docs")
    config = types.SimpleNamespace(
        sphinx_gallery_conf={"examples_dirs": ["../tutorials"]},
        tutorial_cpu_budget=15,
        tutorial_cpu_budgets={name: entry},
    )
    with pytest.raises(ConfigError, match=said):
        gallery_cost.check_budgets(app, config)


@pytest.mark.site
def test_tutorials_of_the_site_are_cheap():
    config = Config.read(ROOT, overrides={}, tags=None)
    generated = ROOT / "docs"
    costs = {name: gallery_cost.usual_seconds(stamp) for name, stamp in stamps(".").items()}
    scripts = {path.stem for path in galleries.scripts(ROOT)}
    assert set(costs) == scripts, "a tutorial has no stamp; run `make html` first"
    print(f"processor seconds: {costs}")
    values = config._raw_config
    budget, budgets = values["tutorial_cpu_budget"], values["tutorial_cpu_budgets"]
    assert gallery_cost.too_costly(generated, budget, budgets) == []


@pytest.mark.site
def test_the_pages_of_symptoms_are_cheap_together():
    pages = stamps("tutorials/debugging").items()
    costs = {name: gallery_cost.usual_seconds(stamp) for name, stamp in pages}
    assert len(costs) >= 50
    assert sum(costs.values()) < 180, sorted(costs.items(), key=lambda item: -item[1])[:10]
