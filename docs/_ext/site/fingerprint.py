"""Read every page anew when the code that reads it is another.

Switch on with ``"docs._ext.site"`` in ``extensions``. Sphinx reads a page again when the page or
one of its dependencies changed; it does not look at the code of the extensions in ``docs/_ext``, at
``benchmarks`` or at the installed packages. What an older version of them kept in
``build/work/doctrees`` would show on pages, or crash a newer version. Their fingerprint is the
``env_version`` of this extension, so Sphinx discards what was read with another one.
"""

import hashlib
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[3]


def reading_code():
    """A positive number that differs when the code or the packages that read pages differ."""
    installed = sorted(p.name for p in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))
    digest = hashlib.sha256("\0".join([sys.version, *installed]).encode())
    extensions = sorted(ROOT.glob("docs/_ext/**/*.py"))
    judges = [ROOT / "benchmarks" / name for name in ("record.py", "code_hash.py")]
    for source in [*extensions, *judges]:
        if source.is_file():
            name = source.relative_to(ROOT).as_posix()
            digest.update(name.encode() + b"\0" + source.read_bytes() + b"\0")
    return int.from_bytes(digest.digest()[:6]) + 1


def setup(app):
    return {
        "env_version": reading_code(),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
