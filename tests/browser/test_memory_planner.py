"""The planner's page: what its script computes is what Python computes, and its state travels."""

import random

import pytest
from torchrl_doctor.planner import DEFAULTS, PRESETS, STORAGES, planned

from tests.browser.probes import violations

PAGE = "reference/memory_planner.html"
SWITCHES = ("compact", "delta", "at_sampling", "traj_ids", "step_count", "is_init", "index")
NUMBERS = (
    "frames_per_batch",
    "workers",
    "rows",
    "frames",
    "hidden",
    "layers",
    "inputs",
    "length",
    "resets",
)
SPECS = "position: float32 3; mask: bool 16; map: int32 4x5x7; action: float32 2; reward: float32 1"
RANDOM = 40


def random_inputs(draw):
    found = {name: draw.randint(0, 1) for name in (*SWITCHES, "recurrent", "lstm", "scratch")}
    found |= {name: draw.randint(1, 1000) for name in NUMBERS}
    kind = draw.choice(STORAGES)
    return found | {name: int(name == kind) for name in STORAGES} | {"share": draw.random()}


def cases():
    draw = random.Random(0)
    yield from ((preset["specs"], {}) for preset in PRESETS.values())
    texts = [SPECS, *(preset["specs"] for preset in PRESETS.values())]
    yield from ((draw.choice(texts), random_inputs(draw)) for _ in range(RANDOM))


@pytest.fixture
def planner(at):
    page = at(PAGE)
    page.wait_for_selector(".planner-totals")
    return page


def test_page_computes_what_python_computes(planner):
    compute = "(asked) => document.querySelector('.memory-planner').planned(...asked)"
    for specs, inputs in cases():
        wanted = planned(specs, **inputs).totals
        assert planner.evaluate(compute, [specs, inputs]) == pytest.approx(wanted, rel=1e-12)


def test_plan_is_in_the_address(planner, open_page):
    planner.select_option("[name=env]", "atari")
    planner.fill("[name=rows]", "1000000")
    planner.check("[name=at_sampling]")
    planner.uncheck('[name=keep][value="next.pixels"]')
    assert "Switch on StepCounter" in planner.inner_text(".planner-results pre")
    planner.check("[name=step_count]")
    shown = planner.inner_text(".planner-totals")
    other = open_page()
    other.goto(planner.url)
    other.wait_for_selector(".planner-totals")
    assert other.inner_text(".planner-totals") == shown
    code = other.inner_text(".planner-results pre")
    assert 'CatFrames(N=4, dim=-3, in_keys=["pixels"], out_keys=["pixels_stack"])' in code
    assert '("next", "pixels")' in code
    assert 'transform=StackFrames(storage, 4, "pixels", "pixels_stack")' in code
    assert "StepCounter" in code
    inputs = {"frames": 4, "at_sampling": 1, "step_count": 1, "rows": 10**6}
    kept = planned(PRESETS["atari"]["specs"], drop=["next.pixels"], **inputs)
    buffer = f"{kept.totals['buffer_process'] / 1e9:.3g}\u00a0GB"
    assert buffer in shown
    savings = other.inner_text(".planner-savings")
    assert f"{buffer} less memory, and {buffer} of disk" in savings
    assert "the peak while collecting" in savings
    assert "CompressedListStorage" not in savings, "for single frames"


def test_buffer_and_peak_lead(planner):
    planner.select_option("[name=storage]", "memmap")
    planner.fill("[name=workers]", "4")
    plan = planned(PRESETS["cartpole"]["specs"], workers=4, tensor=0, memmap=1).totals
    buffer = f"{plan['buffer_shared'] / 1e6:.3g}\u00a0MB"
    peak = f"{(plan['collector_process'] + plan['collector_shared']) / 1e3:.3g}\u00a0kB"
    assert planner.locator(".planner-lead").all_inner_texts() == [
        f"Replay buffer\n{buffer} in shared memory",
        f"Peak while collecting\n{peak}",
    ]


def test_specs_that_cannot_be_read_say_what_they_look_like(planner):
    planner.fill("[name=specs]", "observation float32 4")
    assert "write observation: float32 4" in planner.inner_text(".planner-error")


def test_presets_and_formulas_are_there_without_scripts(at):
    page = at(PAGE, fresh=True, java_script_enabled=False)
    assert not page.locator(".memory-planner").is_visible()
    assert "CartPole" in page.inner_text(".memory-plans")
    assert "frames_per_batch * row" in page.inner_text(".memory-formulas")


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_form_fits_and_is_accessible(at, width, mode):
    page = at(PAGE + "#cell=lstm", width=width, color_scheme=mode)
    page.wait_for_selector(".planner-totals")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_total_of_the_buffer_is_the_sum_above_it(planner):
    assert planner.inner_text(".planner-totals caption") == "Memory of this plan"
    rows = planner.locator(".planner-parts tbody tr")
    cells = [row.split("\t") for row in rows.all_inner_texts()]
    stored = [int(row[-1].removesuffix("\u00a0B")) for row in cells]
    assert cells[-1][0] == "Total"
    assert stored[-1] == sum(stored[:-1]) == 74


def test_controls_are_of_one_kind(planner):
    heights = planner.locator(".planner-fields > label > :is(input, select)").evaluate_all(
        "all => all.map((e) => e.offsetHeight).filter(Boolean)"
    )
    assert len(set(heights)) == 1
    of = "(e, [name, pseudo]) => getComputedStyle(e, pseudo)[name]"
    box = planner.locator("fieldset input").first
    link = planner.locator(".planner-savings a").first.evaluate(of, ["color", None])
    assert box.evaluate(of, ["accentColor", None]) == link
    quiet = planner.locator(".page-stamp").evaluate(of, ["color", None])
    empty = planner.locator("[name=policy]")
    assert empty.evaluate(of, ["color", "::placeholder"]) == quiet


def test_paper_has_what_was_chosen(planner):
    planner.check("[name=step_count]")
    planner.emulate_media(media="print")
    chosen = ("specs", "rows", "traj_ids", "step_count")
    shown = planner.locator(".memory-planner [name]").evaluate_all(
        "all => all.filter((e) => e.checkVisibility()).map((e) => e.name)"
    )
    assert set(chosen) <= set(shown)
    assert not {"policy", "compact", "is_init", "cell", "hidden"} & set(shown)


def test_formulas_have_their_defaults(planner):
    names = planner.evaluate(
        "JSON.parse(document.querySelector('.memory-planner + script').textContent).DEFAULTS"
    )
    assert names == DEFAULTS
