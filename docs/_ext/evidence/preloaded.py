"""Execute evidence scripts in forks of one process that has imported the stack.

``store`` starts ``python -m docs._ext.evidence.preloaded`` and writes the job to its standard
input, one JSON object. It executes as many scripts at once as cores are free, each as isolated as
in a process of its own, and keeps results and failures.
"""

import atexit
import gc
import json
import multiprocessing.process
import os
import sys
import threading

from docs._ext.evidence.run_script import main_module
from docs._ext.evidence.store import Store
from docs._ext.support.assertions import install
from docs._ext.support.fork import Fork, Slots, cores, preload


def start_fork(script, folder, environment, output, errors):
    """As ``store.start_process``, in a fork of this process."""
    return Fork(run_as_main, script, folder, environment, output, errors)


def run_as_main(script, folder, environment, output, errors):
    """Be the process that ``python script`` would be; return its status.

    What the end of an interpreter does has no public name; not reported.
    """
    os.setsid()
    os.chdir(folder)
    for number, file in enumerate((output, errors), 1):
        os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.process.ORIGINAL_DIR = folder
    sys.argv = [str(script)]
    sys.path[0] = str(script.parent)
    names = main_module(script)
    status = _run(script, names)
    threading._shutdown()  # waits for threads, as the end of an interpreter does
    atexit._run_exitfuncs()
    names.clear()
    gc.collect()  # what complains when it is deleted complains now
    return status


def _run(script, names):
    """Execute *script*; say on standard error what it raises, as an interpreter does."""
    try:
        exec(compile(script.read_bytes(), str(script), "exec"), names)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def serve(store, names, limit, slots, queue):
    """Execute what the queue names until it is empty."""
    while number := os.read(queue, 4):
        with slots.one():
            store.execute_and_keep(names[int.from_bytes(number)], limit, start_fork)
    return 0


def main():
    job = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    preload(job["preload"])
    install()
    store = Store(job["scripts"], job["kept"], stack=job["stack"])
    queue, entry = os.pipe()
    for number in range(len(job["names"])):
        os.write(entry, number.to_bytes(4))
    os.close(entry)
    work = serve, store, job["names"], job["limit"], Slots(job["slots"]), queue
    lanes = [Fork(*work) for _ in range(cores())]
    # taking apart what was imported takes a second; a lane that a signal ended has a status below 0
    os._exit(max(abs(lane.wait()) for lane in lanes))


if __name__ == "__main__":
    main()
