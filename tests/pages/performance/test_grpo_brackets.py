"""What the page on GRPO says of the record."""

from functools import partial

from benchmarks.recipes.grpo_brackets import PARTS
from tests.support.claims import guards
from tests.support.suites import recorded as recorded_of

recorded = partial(recorded_of, "recipe_grpo_brackets")


@guards("brackets-every-part-loses")
def test_every_part_takes_longer_than_in_plain_torch():
    for part in PARTS:
        assert recorded("torchrl", f"{part}_time", "q1") > recorded("plain", f"{part}_time", "q3")
