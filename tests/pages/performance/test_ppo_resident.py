"""What the page on PPO with environments on the device says of the record."""

from functools import partial

from tests.support.claims import guards
from tests.support.suites import recorded as recorded_of

recorded = partial(recorded_of, "recipe_ppo_resident")
BATCHES = (64, 256, 1024)


@guards("resident-record-counts")
def test_nothing_is_read_and_there_is_one_reset():
    for batch in BATCHES:
        ours = f"collect-resident-{batch}"
        assert recorded(ours, "reads") == 0
        assert recorded(ours, "resets") == 1
        assert recorded(ours, "ends") > batch / 8
        assert recorded(ours, "position_error") < 1e-4
        assert recorded(f"resident-{batch}", "solved") == 1


def interval(contender):
    return [recorded(contender, f"cpu_iqm_{end}") for end in ("low", "high")]


@guards("resident-trains-cheaper")
def test_a_training_of_many_with_mjx_takes_less_processor_time_than_with_c():
    assert interval("resident-256")[1] < interval("host-256")[0]
    assert interval("resident-64")[1] > interval("host-64")[0]


@guards("resident-compiling-outweighs-one-seed")
def test_compiling_takes_more_than_one_training_gains():
    gain = recorded("host-256", "cpu_iqm") - recorded("resident-256", "cpu_iqm")
    assert gain < recorded("resident-256", "compile_time")


@guards("resident-collects-faster")
def test_mjx_collects_faster_than_c():
    for batch in BATCHES:
        assert recorded(f"collect-resident-{batch}", "time_vs_host", "q3") < 0.8


@guards("shipped-mjx-takes-longer")
def test_the_class_that_torchrl_resets_takes_longer():
    shipped = "collect-shipped-256"
    assert recorded(shipped, "time_vs_host", "q1") > 1
    assert recorded(shipped, "reads") >= 16
    assert recorded(shipped, "resets") > 8


@guards("resident-parts-shrink")
def test_a_frame_takes_less_in_a_larger_batch():
    for part in ("collect_time", "update_time"):
        found = [recorded(f"resident-{batch}", part) for batch in BATCHES]
        assert found == sorted(found, reverse=True)


@guards("resident-wide-needs-frames")
def test_a_larger_batch_needs_more_frames():
    found = [recorded(f"resident-{batch}", "frames_to_threshold") for batch in BATCHES]
    assert found == sorted(found)


@guards("resident-small-batch-cheapest")
def test_the_largest_batch_costs_more_than_the_others():
    for contender in ("resident-64", "resident-256"):
        assert interval(contender)[1] < interval("resident-1024")[0]
