"""The register of addresses and the built site agree, and no address ever left the register.

So does the list of days on which pages came.
"""

import subprocess
from datetime import date

import pytest

from tests.support import ROOT, SITE
from tools import addresses

REGISTER = ROOT / "docs" / "addresses.txt"
CHANGES = ROOT / "docs" / "changes.txt"


def entries(text):
    """The addresses of a register, those that are gone among them; a folder is its index page."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = (line.partition(" ")[0] for line in lines)
    return [f"{address}index.html" if address.endswith("/") else address for address in found]


def test_the_register_is_sorted_and_names_each_address_once():
    found = entries(REGISTER.read_text(encoding="utf-8"))
    assert found == sorted(set(found), key=addresses.position)


def test_a_given_up_address_has_a_reason():
    lines = REGISTER.read_text(encoding="utf-8").splitlines()
    commented = [line for line in lines if "#" in line.partition(" ")[2]]
    without = [line for line in commented if not line.partition(addresses.GONE)[2].strip()]
    assert without == [], f"end the line with '{addresses.GONE}<reason>'"


def test_no_address_ever_left_the_register():
    """Compares with each committed state of the list, as far as this checkout knows them."""
    command = ["git", "-C", ROOT, "log", "--format=", "--patch", "-m", "--", "docs/addresses.txt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git checkout: what was registered before is unknown")
    removed = "\n".join(
        line[1:]
        for line in done.stdout.splitlines()
        if line.startswith("-") and not line.startswith("---")
    )
    dropped = set(entries(removed)) - set(entries(REGISTER.read_text(encoding="utf-8")))
    assert sorted(dropped) == [], (
        "put the lines back; where the content of an address went, write redirect-from, "
        f"and a file that is given up ends its line with '{addresses.GONE}<reason>'"
    )


@pytest.mark.site
def test_the_site_has_what_is_registered():
    lost = list(addresses.lost(addresses.offered(SITE), REGISTER))
    assert not lost, "\n".join(lost)


@pytest.mark.site
def test_what_the_site_has_is_registered():
    new = addresses.unregistered(addresses.offered(SITE), REGISTER)
    cure = "register them with `make addresses`, and commit docs/addresses.txt:"
    assert not new, "\n".join([cure, *new])


@pytest.mark.site
def test_each_page_has_the_day_on_which_it_came():
    new = addresses.undated(SITE, CHANGES)
    cure = "date them with `make addresses`, and commit docs/changes.txt:"
    assert not new, "\n".join([cure, *new])


def test_changes_are_dated_newest_first_and_once():
    lines = CHANGES.read_text(encoding="utf-8").splitlines()[1:]
    days = [date.fromisoformat(line.partition(" ")[0]) for line in lines]
    assert days == sorted(days, reverse=True)
    assert len({line.partition(" ")[2] for line in lines}) == len(lines)
