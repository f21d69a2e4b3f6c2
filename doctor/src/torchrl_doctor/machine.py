"""What a maintainer asks for first: versions, the extension, processor, memory, limits, GPUs.

It needs the standard library alone, so that it works where torch is missing or does not load.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

from torchrl_doctor.about import __version__
from torchrl_doctor.releases import installed_version

PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "triton", "numpy")


VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "MUJOCO_GL",
    "RL_LOGGING_LEVEL",
)


PREFIXES = ("TORCHRL_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_")


UNKNOWN = "unknown"


class Machine(dict):
    """Sections of names and values; `str` is a text to paste."""

    def __str__(self):
        width = max(len(name) for section in self.values() for name in section)
        lines = []
        for title, section in self.items():
            lines += [title, *(f"  {name:{width}}  {value}" for name, value in section.items())]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self):
        return json.dumps(self, indent=1, ensure_ascii=False)

    def to_markdown(self):
        """A table for an issue."""
        lines = ["| | |", "| --- | --- |"]
        for title, section in self.items():
            lines.append(f"| **{title}** | |")
            for name, value in section.items():
                shown = str(value).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
                lines.append(f"| {name} | {shown} |")
        return "\n".join(lines) + "\n"


def environment():
    """Versions and limits of this interpreter and machine, as a dictionary of sections.

    It names neither host nor user: the folder of the user is "~" in it.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        machine = looked_at()
    heard = [one.message for one in caught if not isinstance(one.message, DeprecationWarning)]
    numbered = enumerate(dict.fromkeys(map(in_a_line, heard)), 1)
    machine["Imports"] |= {f"warning {number}": said for number, said in numbered}
    return machine


def looked_at():
    torch, why_not = imported("torch")
    loads = extension_state(why_not)  # imports torchrl, which sets the start method
    return Machine(
        {
            "Versions": {"torchrl-doctor": __version__, "python": platform.python_version()}
            | {name: installed_version(name) or "not installed" for name in PACKAGES}
            | ({"torch": torch.__version__} if torch else {}),
            "Imports": {"torch": why_not or "loads", "extension of torchrl": loads},
            "Processes": {
                "start method": start_method(),
                "threads of torch": threads_of(torch),
                "open files": open_files(),
                "shared memory": shared_memory(),
            },
            "Machine": {
                "system": platform.platform(),
                "processor": processor(),
                "cores": cores(),
                "memory": memory(),
            },
            "GPUs": gpus(torch),
            "Variables": variables(),
        }
    )


def imported(name):
    """A module, and None; or None, and why it cannot be imported."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        return None, f"{name.partition('.')[0]} is not installed"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module(name), None
    except (Exception, SystemExit) as error:
        return None, in_a_line(error)


def in_a_line(error):
    """An exception or a warning with its type, without the folder of the user."""
    return without_home(" ".join(f"{type(error).__name__}: {error}".split()))


def without_home(text):
    return text.replace(str(Path.home()), "~")


def extension_state(why_no_torch):
    """Whether the compiled part of TorchRL loads, and if not why."""
    if why_no_torch:
        return f"does not load: torch does not ({why_no_torch})"
    for name in ("torchrl", "torchrl._torchrl"):
        if why_not := imported(name)[1]:
            return f"does not load: {why_not}"
    return "loads"


def start_method():
    multiprocessing = imported("torch.multiprocessing")[0] or importlib.import_module(
        "multiprocessing"
    )
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or f"{multiprocessing.get_all_start_methods()[0]}, the default"


def threads_of(torch):
    if torch is None:
        return UNKNOWN
    return f"{torch.get_num_threads()}, and {torch.get_num_interop_threads()} between operations"


def open_files():
    try:
        import resource
    except ImportError:  # Windows
        return UNKNOWN
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = ("unlimited" if one == resource.RLIM_INFINITY else one for one in limits)
    return f"at most {soft}, may be raised to {hard}"


def in_gib(number):
    return f"{number / 2**30:.1f} GiB"


def shared_memory():
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return "no /dev/shm"
    usage = shutil.disk_usage(folder)
    return f"{in_gib(usage.total)}, {in_gib(usage.free)} of them free"


def first_words(path, start):
    """What follows *start* in the first line of a file that begins with it; None without one."""
    with contextlib.suppress(OSError):  # not Linux, or no limit
        for line in Path(path).read_text(errors="replace").splitlines():
            if line.startswith(start):
                return line[len(start) :].strip(" \t:")
    return None


def processor():
    named = first_words("/proc/cpuinfo", "model name") or platform.processor()
    return f"{named or UNKNOWN} ({platform.machine()})"


def cores():
    number = os.cpu_count()
    with contextlib.suppress(AttributeError, OSError):  # only Linux says it
        return f"{number}, {len(os.sched_getaffinity(0))} of them for this process"
    return str(number or UNKNOWN)


def memory():
    total, free = (first_words("/proc/meminfo", name) for name in ("MemTotal", "MemAvailable"))
    if total is None or free is None:
        return UNKNOWN
    said = [in_gib(int(one.split()[0]) * 2**10) for one in (total, free)]
    limit = first_words("/sys/fs/cgroup/memory.max", "")
    more = f", a limit of {in_gib(int(limit))}" if limit and limit.isdigit() else ""
    return f"{said[0]}, {said[1]} of them available{more}"


def gpus(torch):
    """GPUs by number, without starting CUDA in this process."""
    section = {}
    if torch is not None:
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        section["torch was built for"] = built or "no GPU"
        section["seen by torch"] = torch.cuda.device_count()
        if torch.backends.mps.is_available():
            section["MPS"] = "available"
    if tool := shutil.which("nvidia-smi"):
        query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
            section |= {f"GPU {n}": line for n, line in enumerate(done.stdout.splitlines())}
        except (OSError, subprocess.SubprocessError) as error:
            section["nvidia-smi"] = without_home(str(error))
    return section or {"found": "none"}


def variables():
    """Variables that change what torch and TorchRL do."""
    found = {
        name: without_home(value)
        for name, value in sorted(os.environ.items())
        if name in VARIABLES or name.startswith(PREFIXES)
    }
    return found or {"set": "none"}


def print_environment(arguments):
    """``torchrl-doctor env``; its status is 0, or 2 where an option is none."""
    forms = {"--json": Machine.to_json, "--markdown": Machine.to_markdown}
    if len(arguments) > 1 or not {*arguments} <= forms.keys():
        print("usage: torchrl-doctor env [--json | --markdown]", file=sys.stderr)
        return 2
    print((forms[arguments[0]] if arguments else str)(environment()).rstrip("\n"))
    return 0
