"""The filter of the debugging map and the error index, as a stranger uses them."""

import pytest

from tests.browser.probes import CLIPBOARD, violations

WORDS_FIELD = "What do you see?"
ROW = "details.symptom"
ENTRY = ".error-entry"

# What somebody types who does not know the cause, and the row that has to be among the first.
WORDS = {
    "lstm policy does not remember": "lstm_forgets_every_step",
    "epsilon greedy does not decay": "epsilon_never_goes_down",
    "same seed, other results": "same_seed_different_start",
    "target network not updated": "q_values_stop_improving",
    "evaluation with random actions": "evaluation_takes_random_actions",
    "dqn loss nan compact_obs": "off_policy_loss_is_nan",
    "sample bigger than batch_size": "sample_returns_far_more_rows",
    "all workers do the same": "workers_act_alike",
    "memmap in /dev/shm": "memmap_buffer_fills_memory",
    "priorities have no effect": "prioritized_replay_draws_evenly",
    "time limit terminated": "values_too_low_at_time_limits",
    "GAE shuffled batch": "advantages_look_like_noise",
    "LSTM hidden states not updating between steps": "lstm_forgets_every_step",
    "my agent is not learning, reward does not increase": "collector_keeps_its_own_policy",
    "DQN doesn't learn": "q_values_stop_improving",
    "out of memory when creating replay buffer": "first_extend_takes_all_memory",
    "RAM keeps growing while collecting": "one_kept_step_keeps_the_batch",
    "ParallelEnv all envs same observations": "every_environment_starts_alike",
    "MultiSyncDataCollector weights not updated in workers": "workers_never_learn",
    "VecNorm stats differ per worker": "workers_normalize_differently",
    "observation next is nan": "most_next_observations_nan",
    "ratio not equal to 1 in first epoch of PPO": "ppo_clips_before_the_first_update",
    "slice sampler truncated key all false": "set_truncated_marks_nothing",
    "SyncDataCollector + ParallelEnv + replay_buffer crashes": (
        "filling_a_buffer_raises_about_dimensions"
    ),
    "when should I call update_policy_weights_": "collector_keeps_its_own_policy",
    "Some stored trajectories have a length shorter than the slice that was asked for": (
        "no_trajectory_is_long_enough"
    ),
    "Bus error (core dumped)": "memmap_buffer_fills_memory",
}
# A message as another terminal shows it, with other numbers, shapes and names, and its page.
MESSAGES = {
    """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    for batch in collector:
KeyError: 'key "is_init" not found in TensorDict with keys [\\'pixels\\', \\'step_count\\']'""": (
        "is_init_not_found"
    ),
    "RuntimeError: Did not find a single trajectory with sufficient length "
    "(length range: 3 - 17 / required=64)).": "no_trajectory_is_long_enough",
    "RuntimeError: tensordict stored sample_log_prob requires grad.": (
        "stored_log_prob_requires_grad"
    ),
    "tensor shape is incompatible with dest shape, got: tensor.shape=torch.Size([16, 8]), "
    "dest=torch.Size([16, 1])": "one_step_cannot_be_stored",
    "ValueError: Action spec shape does not match the action shape": "actor_of_many_fails_in_one",
    "RuntimeError: SumSegmentTreeFp64 is not available. See warning above.": (
        "prioritized_replay_not_available"
    ),
    "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 512 (input tensor's size "
    "at dimension 0), but got split_sizes=[100, 3]": "splitting_a_sample_fails",
    "RuntimeError: Batching rule not implemented for aten::gru.input. We could not generate a "
    "fallback.": "gae_raises_with_lstm",
    "UserWarning: frames_per_batch (1000) is not exactly divisible by the number of batched "
    "environments (48), this results in more frames_per_batch per iteration that requested": (
        "more_frames_than_asked_for"
    ),
    "AttributeError: 'ModuleDict' object has no attribute 'data'": "update_weights_wants_data",
    "AssertionError: The shapes of the real and fake tensordict don't match for key pos. Got "
    "fake=torch.Size([1]) and real=torch.Size([]).": "specs_and_data_disagree",
    "AttributeError: 'Linear' object has no attribute 'data'": "update_weights_wants_data",
    "AttributeError: 'NoneType' object has no attribute 'is_floating_point'": (
        "sampling_raises_nonetype_floating"
    ),
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
    "cuda:0 and cpu! (when checking argument for argument mat1)": "loss_and_data_on_two_devices",
    # The first line of a long one.
    "UserWarning: No target network updater has been associated with this loss module": (
        "q_values_stop_improving"
    ),
    "batch_size not specified. You can specify the batch_size when": "sample_asks_for_a_batch_size",
}
FIRST = 3


@pytest.fixture
def opened(at):
    """A function that opens a page of the reference; all requests have to stay on the site."""

    def opened(name, anchor="", **options):
        page = at(f"reference/{name}.html{anchor}", **options)
        page.wait_for_load_state("networkidle")
        return page

    return opened


def visible(page, selector):
    return page.locator(f"{selector}:visible")


def label(slug):
    return f"symptom-{slug.replace('_', '-')}"


def ask(page, words):
    """Type into the filter of the map, and wait for the engine of the search."""
    page.get_by_label(WORDS_FIELD).fill(words)
    page.evaluate("loadSearch()")


def ids(page):
    return visible(page, ROW).evaluate_all("rows => rows.map(row => row.id)")


def test_the_landing_page_leads_to_the_map_in_one_click(at):
    page = at("index.html")
    page.locator('.entry-card-name a[href="reference/debugging_map.html"]').click()
    page.wait_for_url("**/reference/debugging_map.html")


@pytest.mark.parametrize(
    "start", ["performance/collectors", "tutorials/debugging/decimals_are_lost"]
)
def test_the_header_leads_to_the_map(at, start):
    page = at(f"{start}.html")
    page.locator("#pst-header").get_by_role("link", name="Debugging").click()
    page.wait_for_url("**/reference/debugging_map.html")
    here = page.locator("#pst-header .nav-item.current")
    assert here.all_inner_texts() == ["Debugging"]


def said(page):
    return page.locator(".symptom-filter output").inner_text()


def press(page, text):
    page.locator(f'.filter-buttons button[value="{text}"]').click()


def pressed(page):
    chips = page.locator('.filter-buttons button[aria-pressed="true"]')
    return chips.evaluate_all("chips => chips.map(chip => chip.value)")


def test_each_filter_hides_what_does_not_fit(opened):
    page = opened("debugging_map")
    total = page.locator(ROW).count()
    assert visible(page, ROW).count() == total >= 50
    press(page, "loud")
    loud = visible(page, ROW).count()
    assert 0 < loud < total
    assert set(visible(page, ROW).evaluate_all("r => r.map(x => x.dataset.effect)")) == {"loud"}
    press(page, "recurrent state")
    assert 0 < visible(page, ROW).count() < loud
    assert page.locator(".symptom-group:visible h3").count() == 1, "groups without a symptom hide"
    press(page, "silent")
    assert pressed(page) == ["recurrent state", "silent"], "one effect at a time"
    press(page, "silent")
    press(page, "recurrent state")
    assert pressed(page) == []
    ask(page, "zzzz")
    assert visible(page, ROW).count() == 0
    assert said(page).startswith(f"0 of {total} symptoms.")
    assert not page.get_by_role("heading", name="Symptoms").is_visible()
    everywhere = page.locator(".symptom-filter").get_by_role("link")
    assert everywhere.get_attribute("href").endswith("search.html?q=zzzz")
    ask(page, "")
    assert visible(page, ROW).count() == total


def test_the_buttons_say_what_they_do(opened):
    page = opened("debugging_map")
    names = ("Only symptoms of", "Only symptoms with")
    groups = [page.get_by_role("group", name=name) for name in names]
    assert [group.get_by_role("button").count() for group in groups] == [11, 2]
    for name in names:
        assert page.locator(".filter-group").get_by_text(name).is_visible()
    silent = groups[1].get_by_role("button").first
    assert silent.inner_text().startswith("no error (silent)")
    mark = "(e) => getComputedStyle(e, '::after').content"
    before = silent.evaluate(mark)
    silent.click()
    assert (before, silent.evaluate(mark)) == ("none", '" ×" / ""'), "pressed again, it goes"


def test_each_symptom_of_the_triage_has_its_mark(opened):
    page = opened("triage")
    links = page.locator('article a[href*="debugging_map.html#symptom-"]')
    behind = links.evaluate_all(
        "all => all.map((e) => [e.textContent, e.nextElementSibling?.className || ''])"
    )
    assert len(behind) > 9
    assert [text for text, marked in behind if not marked.startswith("symptom-effect")] == []


def test_a_chip_counts_its_symptoms(opened):
    page = opened("debugging_map")
    chips = page.locator(".filter-buttons button")
    assert chips.count() == 11 + 2
    for chip in chips.all():
        chip.click()
        assert said(page).startswith(f"{chip.locator('b').inner_text()} of ")
        assert visible(page, ROW).count() == int(chip.locator("b").inner_text())
        chip.click()


def test_the_address_holds_the_filter(opened, site_url):
    page = opened("debugging_map")
    map_url = page.url
    ask(page, "lstm forgets")
    press(page, "recurrent state")
    press(page, "silent")
    address, found = page.url, ids(page)
    assert address == f"{map_url}?q=lstm+forgets&subsystem=recurrent+state&effect=silent"
    page.goto(f"{site_url}reference/triage.html")
    page.go_back()
    page.evaluate("loadSearch()")
    assert (page.url, ids(page)) == (address, found), "back"
    assert page.get_by_label(WORDS_FIELD).input_value() == "lstm forgets"
    assert pressed(page) == ["recurrent state", "silent"]
    ask(page, "")
    press(page, "silent")
    press(page, "recurrent state")
    assert page.url == map_url


def test_the_address_holds_the_filter_in_a_plain_folder(open_page, site):
    page = open_page()
    page.goto((site / "reference" / "debugging_map.html").as_uri())
    press(page, "loud")
    assert page.url.endswith("debugging_map.html?effect=loud")
    page.reload()
    assert pressed(page) == ["loud"]


def test_a_phone_shows_the_first_symptom_at_once(opened):
    page = opened("debugging_map", width=390, height=844)
    field, row = page.get_by_label(WORDS_FIELD), page.locator(f"{ROW} summary").first
    assert field.bounding_box()["y"] < 300
    box = row.bounding_box()
    assert box["y"] + box["height"] < 844


@pytest.mark.parametrize("script", ["row-filter.js", "pydata-sphinx-theme.js"])
def test_nothing_moves_when_a_script_comes(open_page, site_url, script):
    page = open_page(width=412, height=823, fresh=True)
    tops = []
    for pattern in (f"**/{script}*", "**/nothing"):
        page.route(pattern, lambda route: route.abort())
        page.goto(f"{site_url}reference/debugging_map.html", wait_until="networkidle")
        tops.append(page.locator(f"{ROW} summary").first.bounding_box())
        page.unroute(pattern)
    assert tops[0] == tops[1]


def test_a_row_begins_with_cause_and_fix(opened):
    page = opened("debugging_map")
    row = page.locator(ROW).first
    row.locator("summary").click()
    assert row.locator("dt").all_inner_texts()[:3] == ["Cause:", "Fix:", "Seen:"]
    order = [row.locator(".symptom-fields").first, row.locator("pre").first]
    order += [row.locator("pre").last, row.locator(".symptom-fields").last]
    tops = [place.bounding_box()["y"] for place in order]
    assert tops == sorted(set(tops)), "then the check, its healthy output, and the rest"


def test_the_link_of_a_row_is_copied(opened):
    page = opened("debugging_map", permissions=CLIPBOARD)
    map_url = page.url
    ask(page, "lstm forgets")
    row = visible(page, ROW).first
    row.locator("summary").click()
    row.get_by_role("link", name="Copy link").click()
    row.get_by_role("link", name="Link copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"{map_url}#symptom-lstm-forgets-every-step"


def test_a_link_leads_to_what_the_filter_hides(opened):
    page = opened("debugging_map")
    ask(page, "replay")
    row = page.locator("#symptom-lstm-forgets-every-step")
    assert not row.is_visible()
    page.evaluate("location.hash = 'symptom-lstm-forgets-every-step'")
    row.locator(".symptom-fields").first.wait_for()
    assert page.get_by_label(WORDS_FIELD).input_value() == ""


def test_print_opens_every_row_and_leaves_the_form_out(opened):
    page = opened("debugging_map")
    page.keyboard.press("Control+f")
    page.emulate_media(media="print")
    assert page.locator(f"{ROW} .symptom-fields").first.is_visible()
    assert not page.get_by_label(WORDS_FIELD).is_visible()
    assert page.locator(".symptom-link:visible").count() == 0


def test_a_word_that_no_row_has_changes_nothing(opened):
    page = opened("debugging_map")
    order = ids(page)
    ask(page, "LSTM forgets")
    both = ids(page)
    assert both[0] == "symptom-lstm-forgets-every-step"
    assert len(both) < len(order)
    assert "the nearest first" in said(page)
    ask(page, "LSTM forgets zzzz")
    assert ids(page) == both
    ask(page, "")
    assert ids(page) == order, "the ranking is back"


def test_a_word_inside_another_does_not_count(opened):
    page = opened("debugging_map")
    ask(page, "ram")  # frames, parameter
    texts = visible(page, ROW).all_text_contents()
    assert texts
    assert all("RAM" in text or "memory" in text for text in texts)


def test_words_lead_to_the_row(opened):
    page = opened("debugging_map")
    missed = {}
    for words, slug in WORDS.items():
        ask(page, words)
        first = ids(page)[:FIRST]
        if label(slug) not in first:
            missed[words] = first
    assert missed == {}


def hits(page, message):
    """Paste into the field of the error index; addresses of what is found."""
    page.locator("#search-here").fill(message)
    found = page.locator("#search-here-hits [role=option]")
    found.first.wait_for()
    page.evaluate("loadSearch()")
    return found.evaluate_all("hits => hits.map(hit => hit.href)")


def test_a_pasted_message_leads_to_its_page(opened):
    page = opened("error_index")
    firsts = {message: hits(page, message)[0] for message in MESSAGES}
    assert {m: at for m, at in firsts.items() if f"/{MESSAGES[m]}.html" not in at} == {}


def test_a_hit_of_a_message_shows_the_message_of_the_page(opened):
    page = opened("error_index")
    hits(page, "KeyError: 'key \"is_init\" not found in TensorDict with keys'")
    snippet = page.locator("#search-here-hits .search-snippet").first.inner_text()
    assert snippet.startswith("KeyError: ")


def test_the_field_of_the_error_index_shows_a_message_of_the_index(opened):
    page = opened("error_index")
    shown = page.locator("#search-here").get_attribute("placeholder")
    assert shown in [text.rstrip() for text in page.locator(f"{ENTRY} pre").all_inner_texts()]
    assert page.locator(f"{ENTRY} .symptom-effect").count() == 0


def test_a_message_that_no_row_raises_leads_to_its_answer(opened):
    page = opened("error_index")
    words = "UserWarning: init_random_frames (-1) is not exactly a multiple of frames_per_batch"
    assert hits(page, words)[0].endswith("#term-init_random_frames")
    entry = page.locator(ENTRY).filter(has_text="is not exactly a multiple of frames_per_batch")
    names = entry.get_by_role("link").all_inner_texts()
    assert names[0] == "Random frames (Collector internals)"
    assert names[1] == "init_random_frames (Glossary: collecting)"
    assert names[-1] == "pytorch/rl#2528"
    assert page.request.get(entry.get_by_role("link").first.evaluate("a => a.href")).ok


def test_by_keyboard_alone(opened):
    page = opened("debugging_map")
    page.get_by_label(WORDS_FIELD).focus()
    page.keyboard.type("LSTM forgets")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert pressed(page) == ["recurrent state"]
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    row = page.locator(f"{ROW}[open]")
    assert row.count() == 1
    assert row.locator(".symptom-caption").last.is_visible()


def test_a_link_opens_its_row(opened, site_url):
    page = opened("debugging_map")
    page.goto(f"{site_url}reference/debugging_map.html#symptom-lstm-forgets-every-step")
    assert page.locator(f"{ROW}[open]").get_attribute("id") == "symptom-lstm-forgets-every-step"


@pytest.mark.parametrize("name", ["debugging_map", "error_index"])
def test_without_scripts_everything_is_readable(opened, name):
    page = opened(name, java_script_enabled=False)
    assert page.locator("main form:visible").count() == 0
    assert visible(page, ROW if name == "debugging_map" else ENTRY).count() >= 20
    if name == "debugging_map":
        page.locator(ROW).first.locator("summary").click()
        assert page.locator(f"{ROW}[open] .symptom-fields").first.is_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_open_rows_are_accessible(opened, scheme, width):
    page = opened("debugging_map", color_scheme=scheme, width=width)
    page.evaluate("document.querySelectorAll('details.symptom').forEach(d => d.open = true)")
    page.keyboard.press("Control+f")
    assert violations(page) == []


def test_a_row_is_filled_when_it_is_opened(opened):
    """At once they would keep a phone from answering: there are thousands of elements."""
    page = opened("debugging_map", "#symptom-lstm-forgets-every-step")
    rows, filled = page.locator(ROW), page.locator(f"{ROW} dl")
    assert page.locator(f"{ROW}[open] dl").count() == filled.count() == 2
    rows.nth(1).locator("summary").focus()
    page.keyboard.press("Enter")
    rows.nth(1).locator("button.copybtn").wait_for()
    rows.nth(2).evaluate("(row) => (row.open = true)")
    rows.nth(2).locator("button.copybtn").wait_for()
    assert filled.count() == 2 * 3


@pytest.mark.parametrize("key", ["Control+f", "F3"])
def test_closed_rows_can_be_found(opened, key):
    page = opened("debugging_map")
    page.keyboard.press(key)
    assert page.locator(f"{ROW} dl").count() == 2 * page.locator(ROW).count()


def test_closed_rows_are_printed(opened):
    page = opened("debugging_map")
    page.pdf()
    assert page.locator(f"{ROW} dl").count() == 2 * page.locator(ROW).count()


def test_closed_rows_can_be_found_without_scripts(at):
    page = at("reference/debugging_map.html", java_script_enabled=False)
    inside = page.locator(f"{ROW}:not([open]) dl").first
    assert inside.evaluate("(e) => getComputedStyle(e).display") != "none"


def test_a_button_copies_what_is_to_be_pasted(opened):
    page = opened("debugging_map")
    page.keyboard.press("Control+f")
    checks = page.locator(f"{ROW} .highlight-python").count()
    assert page.locator(f"{ROW} .highlight-python button.copybtn").count() == checks > 0
    assert page.locator(f"{ROW} .highlight-none").count() > 0
    assert page.locator(f"{ROW} .highlight-none button.copybtn").count() == 0
