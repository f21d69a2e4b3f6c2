"""Write a file of the site only where that changes it.

Sphinx reads a page anew when a file that it depends on is newer, and a disk is slow to replace what
a file holds.
"""


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
