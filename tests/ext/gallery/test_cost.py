"""What the tutorials of the built site cost, in seconds of processor time."""

import json
import types
from pathlib import Path

import pytest
from sphinx.config import Config
from sphinx.errors import ConfigError

from docs._ext.gallery import cost as gallery_cost
from docs._ext.support import galleries
from tests.support.fixture_site import ROOT


def stamped(folder, others=0.1, **costs):
    topic = folder / "topic"
    topic.mkdir()
    costs |= {f"other{number}": others for number in range(500)}
    for name, cost in costs.items():
        (topic / f"{name}.stamp.json").write_text(json.dumps({"cpu_seconds": cost}))
    return folder


def test_costs_are_judged(tmp_path):
    generated = stamped(tmp_path, cheap=29.9, costly=30.1, excused=50.0, still=50.1, idle=0.0)
    excuses = {"topic/excused.py": (25, "r"), "topic/still.py": (25, "r")}
    costly, idle, still = gallery_cost.too_costly(generated, 15, excuses)
    assert costly.startswith("topic/costly.py took 30.1 s of processor time beside others,")
    assert "tutorial_cpu_budgets" in costly
    assert idle.startswith("topic/idle.py did not run")
    assert still.startswith("topic/still.py took 50.1 s of processor time beside others,")


def test_a_slow_machine_is_allowed_for(tmp_path):
    generated = stamped(tmp_path, others=3 * gallery_cost.USUAL_SECONDS, cheap=89.9, costly=110.3)
    (costly,) = gallery_cost.too_costly(generated, 15, {})
    assert costly.startswith("topic/costly.py took 3")


def test_the_others_say_how_slow_a_machine_is():
    slow = {f"{number}": 3 * gallery_cost.USUAL_SECONDS for number in range(9)}
    assert gallery_cost.usual_seconds(slow | {"costly": 90})["costly"] == pytest.approx(30)
    assert gallery_cost.usual_seconds({"a": 0.1, "costly": 30})["costly"] == 30


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


@pytest.fixture(scope="module")
def costs():
    """Of the built site, by script."""
    costs = gallery_cost.stamped_seconds(ROOT / "docs")
    assert {Path(name).stem for name in costs} == {path.stem for path in galleries.scripts(ROOT)}, (
        "a tutorial has no stamp; run `make html` first"
    )
    return costs


@pytest.mark.site
def test_tutorials_of_the_site_are_cheap(costs):
    usual = gallery_cost.usual_seconds(costs)
    print(f"processor seconds: {costs}, on a usual machine: {usual}")
    values = Config.read(ROOT, overrides={}, tags=None)._raw_config
    budget, budgets = values["tutorial_cpu_budget"], values["tutorial_cpu_budgets"]
    assert gallery_cost.too_costly(ROOT / "docs", budget, budgets) == []


@pytest.mark.site
def test_the_pages_of_symptoms_are_cheap_together(costs):
    """Together about as much as the lessons and guides, which take longer on a slow machine too."""
    symptoms = {name: cost for name, cost in costs.items() if "/debugging/" in name}
    others = sum(costs.values()) - sum(symptoms.values())
    dearest = sorted(symptoms.items(), key=lambda item: -item[1])[:10]
    assert len(symptoms) >= 50
    assert sum(symptoms.values()) < 1.5 * others, dearest
