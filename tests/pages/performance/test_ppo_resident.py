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


@guards("resident-trains-cheaper")
def test_a_training_with_mjx_takes_less_processor_time_than_with_c():
    for batch in (64, 256):
        assert recorded(f"resident-{batch}", "cpu_iqm_high") < recorded(
            f"host-{batch}", "cpu_iqm_low"
        )


@guards("resident-collects-faster")
def test_mjx_collects_faster_than_c():
    for batch in BATCHES:
        assert recorded(f"collect-resident-{batch}", "time_vs_host", "q3") < 0.8


@guards("shipped-mjx-takes-longer")
def test_the_class_that_torchrl_resets_takes_longer():
    ours, shipped = "collect-resident-256", "collect-shipped-256"
    assert recorded(shipped, "batch_time", "q1") > recorded(ours, "batch_time", "q3")
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
def test_the_smallest_batch_costs_less_than_the_largest():
    assert recorded("resident-64", "cpu_iqm_high") < recorded("resident-1024", "cpu_iqm_low")
