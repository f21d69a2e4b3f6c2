"""What a suite gets as ``benchmark``: it times a function in rounds and holds what is noted.

This module is of the harness (``code_hash.HARNESS``): a change here that alters what is timed takes
a new ``FORMAT`` of the records.
"""

import time


class Benchmark:
    """One benchmark: ``seconds`` of its rounds, and ``extra_info`` for its record.

    Unlike pytest-benchmark, whose names these are, it takes rounds that were timed elsewhere, too.
    """

    def __init__(self):
        self.seconds, self.extra_info = [], {}

    def pedantic(self, function, args=(), setup=None, teardown=None, rounds=1, warmup_rounds=0):
        """Time *function* in *rounds*, after some that do not count; return its last result.

        *setup* runs before each round, untimed, and may return ``(args, kwargs)``; *teardown* runs
        after it with the same.
        """
        for turn in range(warmup_rounds + rounds):
            given, options = (setup and setup()) or (args, {})
            begin = time.perf_counter()
            result = function(*given, **options)
            end = time.perf_counter()
            if turn >= warmup_rounds:
                self.seconds.append(end - begin)
            if teardown:
                teardown(*given, **options)
        return result

    def state(self, seconds):
        """Take *seconds* as those of the rounds."""
        self.seconds += seconds
