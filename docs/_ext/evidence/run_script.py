"""``python run_script.py script``: ``python script``, but a failed assertion says what it saw.

``store`` starts those scripts with it that run in a process of their own.
"""

import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path


def main_module(script):
    """The names of a new ``__main__``, as ``python script`` begins with them."""
    main = types.ModuleType("__main__")
    main.__file__, main.__loader__ = str(script), SourceFileLoader("__main__", str(script))
    sys.modules["__main__"] = main
    return main.__dict__


if __name__ == "__main__":
    script = Path(sys.argv[1])
    sys.path[0] = str(Path(__file__).parents[3])
    from docs._ext.support.assertions import install

    install()
    del sys.argv[0]
    sys.path[0] = str(script.parent)
    exec(compile(script.read_bytes(), str(script), "exec"), main_module(script))
