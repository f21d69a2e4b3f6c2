"""What stops a lesson where torchrl is another one."""

import pytest

from tests.support.tutorial_script import in_a_process


@pytest.fixture(scope="module")
def caught(request):
    """Name of each of the ``CHANGES`` of a module -> what fails; in one process for all of them."""
    return in_a_process(request.path, "CHANGES.outcomes()")
