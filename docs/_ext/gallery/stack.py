"""Know the stack a tutorial runs on: refuse a broken one, stamp each run.

Switch on with ``"docs._ext.gallery"`` in ``extensions``. Settings in ``conf.py``::

    gallery_stack = ["torch", "torchrl", "tensordict", "gymnasium", "matplotlib"]
    gallery_stack_probe = "torchrl._torchrl"  # a module that loads only on a whole stack

Before the first tutorial of a fresh gallery runs, the probe is imported in a process of its own:
an extension built for another torch may crash instead of raising. If the import fails, so does
the build, with the versions and the cure.

``write_stamp`` writes ``<name>.stamp.json`` beside a generated tutorial::

    {"allowed_warnings": [], "cpu_seconds": 7.512, "date": "2026-11-20T10:00:00Z", "device": "cpu",
     "python": "3.11.7", "tutorial": "memory_efficient_rl.py", "versions": {"torch": "2.15.0", ...}}

The date is the time of the run in UTC, or ``SOURCE_DATE_EPOCH`` where that is set. No page shows
the processor time, which differs from run to run (see ``cost``).
"""

import functools
import json
import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from sphinx.errors import ExtensionError

STAMPED = ["torch", "torchrl", "tensordict", "gymnasium"]


@functools.cache
def installed_version(name):
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def installed_closure(roots):
    """``{name: version}`` of the distributions and of everything installed that they require."""
    found, queue = {}, list(roots)
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        version = installed_version(name)
        if name in found or version is None:
            continue
        found[name] = version
        queue += _required(name)
    return dict(sorted(found.items()))


@functools.cache
def _required(name):
    needs = [Requirement(line) for line in metadata.requires(name) or []]
    return [n.name for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]


def visible_accelerator():
    """What a rerun depends on, without importing torch: the NVIDIA devices the driver lists."""
    devices = []
    for info in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        devices += re.findall(r"^Model:\s*(.+?)\s*$", info.read_text(), re.M)
    return {"devices": devices, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}


def check_stack(probe):
    """Import ``probe`` in a fresh interpreter; raise ExtensionError with the cure if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {probe}"], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    versions = ", ".join(f"{n} {installed_version(n) or 'missing'}" for n in ("torch", "torchrl"))
    raise ExtensionError(
        f"{probe} does not load with {versions} ({reason}). No tutorial was run. "
        "Reinstall the tested versions: uv pip install --reinstall -r requirements-docs.txt"
    )


def utc_now():
    """The time in UTC; SOURCE_DATE_EPOCH, when set, makes it reproducible."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def device_in_use():
    """ "cpu", or the name of the CUDA device that a script which imported torch could use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "cpu"


def write_stamp(target, allowed_warnings, cpu_seconds):
    """Write the stamp of the tutorial whose copy is ``target``."""
    stamp = {
        "tutorial": target.name,
        "date": utc_now(),
        "device": device_in_use(),
        "python": platform.python_version(),
        "versions": {name: installed_version(name) for name in STAMPED},
        "allowed_warnings": sorted(allowed_warnings),
        "cpu_seconds": round(cpu_seconds, 3),
    }
    text = json.dumps(stamp, indent=1, sort_keys=True) + "\n"
    target.with_suffix(".stamp.json").write_text(text, encoding="utf-8")


def setup(app):
    app.add_config_value("gallery_stack", [*STAMPED, "matplotlib"], "", types=[list])
    app.add_config_value("gallery_stack_probe", "torchrl._torchrl", "", types=[str])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
