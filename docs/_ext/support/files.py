"""Write a file of the site only where that changes it.

Sphinx reads a page anew when a file that it depends on is newer, and a disk is slow to replace what
a file holds. What takes long to make is not even made, where ``state_of`` its sources and of what
was made of them is what it was.
"""

import hashlib


def write_if_changed(path, content):
    """Leave at *path* the bytes or the text *content*, in a folder that is made where none is."""
    if isinstance(content, str):
        content = content.encode()
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def state_of(*parts):
    """A digest of texts and of files, given as paths; it is another one when any of them is."""
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, str) else part.read_bytes() if part.is_file() else None
        digest.update(hashlib.sha256(repr(content).encode()).digest())
    return digest.hexdigest()
