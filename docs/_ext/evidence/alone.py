"""``python alone.py script``: as ``python script``, and an assertion that fails says what it saw.

``store`` starts scripts so that run in a process of their own.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    script = Path(sys.argv[1])
    sys.path[0] = str(Path(__file__).parents[3])
    from docs._ext.support.assertions import install

    install()
    del sys.argv[0]
    sys.path[0] = str(script.parent)
    __file__ = str(script)
    exec(compile(script.read_bytes(), __file__, "exec"))
