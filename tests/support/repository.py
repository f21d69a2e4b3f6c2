"""Repositories that tests make."""

import subprocess


def git(folder, *arguments):
    """What git prints in *folder*, where somebody works."""
    somebody = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", folder, *somebody, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
