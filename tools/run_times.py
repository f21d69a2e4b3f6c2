"""Take what each tutorial took in the last build into ``tutorials/run_times.json``.

    python tools/run_times.py

The head of a tutorial shows it (``docs/_ext/site/tutorial_head.py``). Run it after ``make html`` on
a machine that does nothing else: the stamps of the build have processor time, which a busy machine
stretches. Scripts of the debugging map are left out, their pages have no such head.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script finds its own folder
from docs._ext.gallery.cost import stamped_seconds
from docs._ext.site.tutorial_head import RUN_TIMES, code_digest
from docs._ext.support import galleries
from docs._ext.symptoms.store import TOPIC
from tools.costs import ROOT, machine


def taken(root):
    """Each script below *root*, by its path: digest of its code and seconds in the last build."""
    seconds = stamped_seconds(root / "docs")
    scripts = {script.relative_to(root).as_posix(): script for script in galleries.scripts(root)}
    lessons = {name: file for name, file in scripts.items() if f"/{TOPIC}/" not in name}
    if missing := sorted(lessons.keys() - seconds.keys()):
        sys.exit(f"the last build did not run {', '.join(missing)}; run `make html` first")
    return {name: [code_digest(file), seconds[name]] for name, file in sorted(lessons.items())}


def main(root=ROOT):
    processor = machine().rpartition(", ")[0]  # without its cores
    record = {"machine": processor, "scripts": taken(root)}
    text = json.dumps(record, indent=1) + "\n"
    (root / RUN_TIMES).write_text(text, encoding="utf-8")
    print(f"{RUN_TIMES}: {len(record['scripts'])} scripts on {record['machine']}")


if __name__ == "__main__":
    main()
