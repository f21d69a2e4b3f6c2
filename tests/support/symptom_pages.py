"""Run pages of ``tutorials/debugging`` and let the doctor look at both sides, in one process each.

As a program: ``python tests/support/symptom_pages.py SLUG...`` prints one JSON object, by slug;
with ``--no-doctor`` before the slugs the doctor stays out of it. torchrl is imported once, with
what pages import beside it; each page runs in a fork, in an empty folder that also is its folder
for temporary files. For each page: what it printed or raised, the findings and names of arguments
of both sides, and what it left behind.
"""

import contextlib
import gc
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "tutorials" / "debugging"
SHARED = Path("/dev/shm")
SECONDS = 60  # for the doctor: many pages on a busy machine
# multiprocessing removes its folder when the interpreter ends; torchrl never removes the one that
# it makes for a storage that several processes initialize.
NOT_OF_THE_PAGE = ("pymp-", "torchrl_storage_init_")
GRACE_S = 3  # for what was told to stop
HUNG_S = 300  # a page; the alarm ends its process
# Page -> a root on its broken side, and what follows from it there.
FOLLOWS_ON = {
    "a_step_changes_the_last_one": ("a_step_changes_the_last_one", ["data_set_is_shifted"]),
    "files_gone_after_a_copy": ("files_gone_after_a_copy", ["buffer_outlives_its_files"]),
    "lstm_raises_in_parallel_env_only": (
        "lstm_forgets_every_step",
        ["lstm_raises_in_parallel_env_only"],
    ),
    "sequences_run_into_each_other": (
        "sequences_run_into_each_other",
        ["advantages_leak_between_environments", "advantages_wrong_with_several_workers"],
    ),
}
# What small environments of pages have, to be short, besides what the page is about.
ALSO_TRUE = {
    # Or not: the rows are what the memory held before.
    "buffer_holds_garbage": {
        "end_without_a_reason",
        "numbers_are_far_from_one",
        "truncated_is_not_done",
    },
    "next_batch_does_not_fit_the_buffer": {"end_without_a_reason", "truncated_is_not_done"},
    "decimals_are_lost": {"actions_have_no_effect", "no_episode_ends"},
    "delta_saves_no_memory": {"actions_have_no_effect", "no_episode_ends"},
    "gym_env_skips_no_frames": {"actions_have_no_effect"},
    "specs_and_data_disagree": {"actions_have_no_effect"},
    "evaluation_collector_explores": {"output_ignores_its_input", "one_environment_for_both"},
    "evaluation_takes_random_actions": {"output_ignores_its_input"},
    "reading_changes_the_buffer": {"all_rewards_are_zero"},
    "splitting_a_sample_fails": {"each_step_ends_an_episode"},
}
DIED = {"error": "the process died", "broken": [], "fixed": []}
LIMIT_S = 1800  # all pages: a bound for a hung child, not an expectation


def observe(slug, with_doctor):
    """What a page printed or raised, and what the doctor finds on its two sides."""
    import torchrl_doctor

    namespace = {"__name__": "__main__", "__file__": str(PAGES / f"{slug}.py")}
    seen = {"error": None, "broken": [], "fixed": [], "arguments": {}, "notes": {}}
    seen["roots"] = {}
    source = (PAGES / f"{slug}.py").read_text(encoding="utf-8")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, f"{slug}.py", "exec"), namespace)
        for side in ("broken", "fixed") if with_doctor else ():
            seen["arguments"][side] = sorted(namespace[side])
            report = torchrl_doctor.diagnose(**namespace[side], seconds=SECONDS)
            seen[side] = [list(finding[:4]) for finding in report]
            seen["roots"][side] = [root.slug for root, _ in report.roots]
            seen["notes"][side] = report.notes
    except BaseException as error:
        seen["error"] = f"{type(error).__name__}: {error}"
        seen["traceback"] = traceback.format_exc()
    seen["printed"] = printed.getvalue()
    namespace.clear()
    return seen


def shared_files():
    """Shared memory, less semaphores: those of any process pass through here."""
    names = {path.name for path in SHARED.iterdir()} if SHARED.is_dir() else set()
    return {name for name in names if not name.startswith("sem.")}


def new_shared_files(known, session=None):
    """Shared memory that is not *known* and stays: what another process is ending goes away.

    Less what is named after another process that is alive, and what a process maps that is outside
    the *session*, by default that of this process.
    """
    new = {name for name in shared_files() - known if not _of_another(name)}
    deadline = time.monotonic() + GRACE_S
    while new and time.monotonic() < deadline:
        time.sleep(0.05)
        new &= shared_files()
    return new - _mapped_outside(session or os.getsid(0)) if new else new


def _mapped_outside(session):
    """Shared memory of the processes that are in another session, by name."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            if os.getsid(int(process.name)) != session:
                found.update(re.findall(rf"{SHARED}/(\S+)", (process / "maps").read_text()))
    return found


def _of_another(name):
    """Whether it is named after a process that is alive and is not this one."""
    owner = re.match(r"(?:torch_|pym-)(\d+)", name)
    return bool(owner) and owner[1] != str(os.getpid()) and Path("/proc", owner[1]).exists()


def running_threads(known):
    """Names of threads that are not *known*, less the one that multiprocessing keeps for good."""
    from multiprocessing.resource_sharer import _resource_sharer

    kept = [*known, _resource_sharer._thread]
    return [one.name for one in threading.enumerate() if one not in kept]


def left_behind(folder, threads, shared):
    """What there is now and was not before, in words; what ends is given a moment to do so."""
    from docs._ext.gallery.children import end_children, end_server

    gc.collect()
    deadline = time.monotonic() + GRACE_S
    while running_threads(threads) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [f"thread {name}" for name in running_threads(threads)]
    left += [f"process {name}" for name in end_children(set())]
    end_server()
    left += [f"shared memory {name}" for name in sorted(new_shared_files(shared))]
    names = sorted(path.name for path in folder.iterdir())
    return left + [f"file {name}" for name in names if not name.startswith(NOT_OF_THE_PAGE)]


def watched(slug, with_doctor):
    """`observe`, with what the page left behind."""
    threads, shared = threading.enumerate(), shared_files()
    with tempfile.TemporaryDirectory() as name:
        tempfile.tempdir = os.environ["TMPDIR"] = name
        os.chdir(name)
        seen = observe(slug, with_doctor)
        seen["left"] = left_behind(Path(name), threads, shared)
        os.chdir("/")
    return seen


def run_pages(slugs, *options, folder, **environment):
    """What a process says about these pages, by slug; it starts in *folder*."""
    # A short path: workers put sockets there, whose paths may have about a hundred letters.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        done = subprocess.run(
            [sys.executable, __file__, *options, *slugs],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": temporary, **environment},
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
    return json.loads(done.stdout)


def main():
    os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.path[:0] = [str(ROOT / "doctor" / "src"), str(ROOT)]
    import gymnasium  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import torchrl.collectors
    import torchrl.data
    import torchrl.envs
    import torchrl.modules
    import torchrl.objectives  # noqa: F401
    from torchrl_doctor import diagnose  # noqa: F401 -- with all its modules

    from docs._ext.gallery import children  # noqa: F401
    from tests.support.forks import in_a_fork

    gc.freeze()  # `left_behind` collects what a page made
    slugs = [argument for argument in sys.argv[1:] if argument != "--no-doctor"]
    with_doctor = len(slugs) == len(sys.argv) - 1
    seen = {slug: in_a_fork(watched, slug, with_doctor, limit_s=HUNG_S) for slug in slugs}
    print(json.dumps({slug: page or DIED for slug, page in seen.items()}, indent=1))


if __name__ == "__main__":
    main()
