"""The model of many collectors, as docs/_ext/records/scaling.py shows it on a page."""

import re

import pytest

from benchmarks import record as records
from docs._ext.records import scaling
from tests.ext.records.test_directives import Project, clean
from tests.support import ROOT

PAGE = """
They collect :modeled:`rate` frames per second, :modeled:`gain` as many.

.. scaling-model:: figure
   :caption: By *workers*

.. scaling-model:: scenarios
   :caption: What would be

.. scaling-model:: costs

.. scaling-model:: errors
"""


class Real(Project):
    """A project with the records of the site."""

    @property
    def overrides(self):
        return {
            "records_folder": str(ROOT / "benchmarks"),
            "records_requirements": str(ROOT / "requirements-docs.txt"),
        }


@pytest.fixture
def project(tmp_path):
    project = Real(tmp_path)
    project.page(PAGE)
    return project


def test_a_page_has_sentences_chart_and_tables_of_one_model(project):
    clean(project)
    text, html = " ".join(project.text().split()), project.html()
    library = records.Library(ROOT / "benchmarks", ROOT / "requirements-docs.txt")
    found = {suite: library.find(suite, "cpu") for suite in scaling.SUITES}
    said = scaling.values(scaling.fit(found), found)
    assert f"They collect {said['rate']} frames per second, {said['gain']} as many." in text
    assert f"200 frames of each collector {said['rate']}" in text
    assert "Batch of two, CartPole" in text
    # Lines of the model are dashed, and only they.
    svg = re.search(r"<svg.*?</svg>", html, re.DOTALL)[0]
    lines = re.findall(r'<path d="M[^"]*L[^"]*"[^>]*style="([^"]*)"', svg)
    dashed = [style for style in lines if "stroke-dasharray: 7.5,3" in style]
    assert len(dashed) == 3
    points = re.findall(r"<title>([^<]*)</title>", svg)
    assert sum(point.startswith("measured, ") for point in points) == 2
    assert len(points) == 2 + 3 * len(scaling.DRAWN)
    assert svg.count("only the points at one and two collectors are measured") == 1
    csv = (project.folder / "html" / "_downloads" / "records" / "index-plot0.csv").read_text()
    assert len(csv.splitlines()) == 1 + len(points)
    for suite in scaling.SUITES:
        assert f'href="stamps.html#record-{suite.replace("_", "-")}-cpu"' in html


def test_a_name_that_is_not_there_is_a_warning(project):
    project.page(":modeled:`rates`\n\n.. scaling-model:: figures\n")
    warnings, _ = project.build()
    assert warnings.count("WARNING") == 2
    assert "no value 'rates'; did you mean 'rate'?" in warnings
    assert "no part 'figures'; did you mean 'figure'?" in warnings


def test_after_a_change_of_code_there_is_no_model(project, monkeypatch):
    reach = scaling.reach

    def outdated(env, suite, device):
        record, _ = reach(env, suite, device)
        return record, {"throughput-ray-2": ["the code has changed"]}

    monkeypatch.setattr(scaling, "reach", outdated)
    clean(project)
    text = project.text()
    assert "<svg" not in project.html()
    assert f"They collect {records.AGAIN} frames" in text
    assert text.count("To be measured again: the code has changed.") == 4
