"""What the doctor says of healthy and broken pipelines: names come in lines, JSON goes out.

They are no arguments, so that a list of processes shows none of what is kept aside. In a process of
its own, of which each part is a fork: whoever has called ``backward`` has threads that no fork may
use.
"""

import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import traceback

from tests.support import ROOT
from tests.support.defects import elsewhere, kept_aside, newer, planting, seen
from tests.support.forks import in_a_fork

DEFECTS = seen.DEFECTS | kept_aside.DEFECTS | newer.DEFECTS
NAMES = (*planting.PIPELINES, *DEFECTS)
AT_ONCE = min(2, os.cpu_count() or 1)
IN_A_FORK = 6
LONGEST_S = 900  # a bound for a hung fork, not an expectation


def looked_at(names):
    """Results of all *names*, by name."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input="\n".join(names),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "doctor" / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def look(names):
    """Results by name; runs in a fork, with workers that are forks of it."""
    import torch

    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    results = {}
    for name in names:
        try:
            defect = (DEFECTS | elsewhere.DEFECTS).get(name)
            one = planting.healthy(name) if defect is None else planting.broken(defect)
        except Exception:
            one = fault(traceback.format_exc())
        results[name] = one
    return results


def fault(text):
    """The result of what could not be looked at."""
    return {"fault": text, "findings": [], "error": None}


def main(names):
    import torchrl.collectors
    import torchrl.envs  # noqa: F401 -- for the forks

    parts = [names[start : start + IN_A_FORK] for start in range(0, len(names), IN_A_FORK)]
    results = {}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        answers = threads.map(lambda part: in_a_fork(look, part, limit_s=LONGEST_S), parts)
        for part, answer in zip(parts, answers, strict=True):
            results |= answer or {name: fault("the process died or hung") for name in part}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.stdin.read().splitlines())
