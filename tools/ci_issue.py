"""Keep one issue per title for a scheduled check: open it, update it, close it.

    python tools/ci_issue.py --title T --body-file FILE --outcome failure

On ``failure`` the open issue with exactly this title gets the new body; without one it is
created. On ``success`` an open one is closed with a comment. Other outcomes (cancelled, skipped)
say nothing about the check and change nothing. Needs the ``gh`` client with a token in
``GH_TOKEN``, and runs on a bare Python.
"""

import argparse
import json
import subprocess


def gh(*arguments):
    """Output of one gh command; a failing command fails the job."""
    return subprocess.run(["gh", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def open_issue(title):
    """Number of the open issue with this title, as text, or None."""
    search = f'in:title "{title}"'
    listed = gh("issue", "list", "--state", "open", "--search", search, "--json", "number,title")
    return next((str(i["number"]) for i in json.loads(listed) if i["title"] == title), None)


def keep(title, body_file, outcome):
    """Bring the issue in line with the outcome."""
    number = open_issue(title) if outcome in {"success", "failure"} else None
    if outcome == "failure" and number:
        gh("issue", "edit", number, "--body-file", body_file)
    elif outcome == "failure":
        gh("issue", "create", "--title", title, "--body-file", body_file)
    elif outcome == "success" and number:
        gh("issue", "close", number, "--comment", "The scheduled check passes again.")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("title", "body-file", "outcome"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args(argv)
    keep(arguments.title, arguments.body_file, arguments.outcome)


if __name__ == "__main__":
    main()
