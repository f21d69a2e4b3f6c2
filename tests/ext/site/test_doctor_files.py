"""The single file and the wheel of the doctor, and the page that offers them to pip."""

import functools
import http.server
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from sphinx.errors import ExtensionError
from uv import find_uv_bin

from docs._ext.site import doctor_files
from tests.support import ROOT, sphinx_forks
from tests.support.programs import run_python

CONF = """
extensions = ["docs._ext.site.doctor_files", "docs._ext.site.downloads"]
html_theme = "basic"
"""
PAGE = """
The doctor
==========

The :doctor-wheel:`wheel` and :download:`torchrl_doctor.py </doctor/torchrl_doctor.py>`.

.. doctor-install::
"""
ADDRESS = "https://manual.example/en"


def build(folder, **environment):
    """The built site below *folder*, which has a copy of the package."""
    docs = folder / "docs"
    if not docs.is_dir():
        (docs / "reference").mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "doctor", folder / "doctor", ignore=ignored)
        (folder / "conf.py").write_text(CONF)
        (docs / "index.rst").write_text("Home\n====\n\n.. toctree::\n\n   reference/doctor\n")
        (docs / "reference" / "doctor.rst").write_text(PAGE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SITE_URL": "", **environment}
    options = ["-q", "-W", "-n", "-c", folder]
    sphinx_forks.run(*options, docs, folder / "html", env=environment, check=True)
    return folder / "html"


def wheel_in(html):
    (wheel,) = (html / "_downloads" / "doctor").glob("*.whl")
    return wheel


def command_on(html):
    page = BeautifulSoup((html / "reference" / "doctor.html").read_text(), "html.parser")
    return page.find("pre").get_text().strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(tmp_path_factory.mktemp("site"))


def test_the_page_names_the_wheel_and_how_to_install_it(site):
    wheel = wheel_in(site)
    page = (site / "reference" / "doctor.html").read_text()
    assert f'href="../_downloads/doctor/{wheel.name}"' in page
    assert command_on(site) == f"$ pip install {wheel.name}"
    assert 'SITE = ""' in (site / "_downloads" / "doctor" / "torchrl_doctor.py").read_text()


def installed(folder, *options):
    """A folder with the doctor, by uv, and nothing else; the script that it installs."""
    target = folder / "installed"
    command = [find_uv_bin(), "pip", "install", "-q", "--no-deps", "--no-index", "--no-cache"]
    command += ["--python", sys.executable, "--target", str(target), *map(str, options)]
    subprocess.run(command, check=True, cwd=folder)
    assert sorted(path.name for path in target.glob("torch*")) == [
        "torchrl_doctor",
        f"torchrl_doctor-{doctor_version()}.dist-info",
    ]
    return target / "bin" / "torchrl-doctor"


def doctor_version():
    import torchrl_doctor

    return torchrl_doctor.__version__


def run(script, *arguments, folder, status=0):
    options = {"cwd": folder, "status": status, "RL_LOGGING_LEVEL": "ERROR"}
    return run_python(script, *arguments, path=[script.parents[1]], **options)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def test_the_page_is_one_that_installers_find_the_wheel_on(site, tmp_path):
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}/reference/doctor.html"
        script = installed(tmp_path, "torchrl-doctor", "--find-links", page)
        server.shutdown()
    done = run(script, "--version", folder=tmp_path)
    assert done.stdout == f"torchrl-doctor {doctor_version()}\n"


def test_uvx_runs_the_wheel_without_installing_it(site, tmp_path):
    """With the stack of this environment: what the wheel requires is gigabytes."""
    (tmp_path / "overrides.txt").write_text("torchrl; sys_platform == 'never'\n", encoding="utf-8")
    done = run_python(
        *("tool", "run", "--offline", "--python", sys.executable),
        *("--overrides", "overrides.txt", "--from", wheel_in(site), "torchrl-doctor"),
        *("env", "--json"),
        python=find_uv_bin(),
        cwd=tmp_path,
        path=[sysconfig.get_path("purelib")],
        UV_CACHE_DIR=str(tmp_path / "cache"),
    )
    versions = json.loads(done.stdout)["Versions"]
    assert versions["torchrl-doctor"] == doctor_version()
    assert versions["torchrl"] == importlib.metadata.version("torchrl")


BROKEN = """
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import LSTMModule, QValueModule


def make(*primer):
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    more = [lstm.make_tensordict_primer() for _ in primer]
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker(), *more))
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    policy = TensorDictSequential(lstm, head, QValueModule(spec=env.action_spec))
    options = {"total_frames": -1, "auto_register_policy_transforms": False}
    return {"collector": Collector(env, policy, frames_per_batch=40, **options)}


def mended():
    return make("primer")
"""


@pytest.mark.slow
def test_the_installed_wheel_names_what_is_broken_and_how_to_mend_it(site, tmp_path):
    script = installed(tmp_path, wheel_in(site))
    folder = tmp_path / "empty"
    folder.mkdir()
    Path(folder, "pipeline.py").write_text(BROKEN, encoding="utf-8")
    done = run(script, "pipeline.py:make", "--seconds", "60", folder=folder, status=1)
    assert "applies: The LSTM forgets everything between steps (silent)\n" in done.stdout
    assert "  fix    Append `lstm.make_tensordict_primer()` to the transforms" in done.stdout
    done = run(script, "pipeline.py:mended", "--seconds", "60", folder=folder)
    assert done.stdout.startswith("No known symptom applies.")


def test_with_an_address_the_doctor_and_the_page_know_it(tmp_path):
    html = build(tmp_path, SITE_URL=ADDRESS)
    options = f"--no-index --find-links {ADDRESS}/reference/doctor.html"
    assert command_on(html) == f"$ pip install torchrl-doctor {options}"
    known = f"SITE = '{ADDRESS}/'"
    assert known in (html / "_downloads" / "doctor" / "torchrl_doctor.py").read_text()
    with zipfile.ZipFile(wheel_in(html)) as wheel:
        assert known in wheel.read("torchrl_doctor/about.py").decode()
    assert 'SITE = ""' in (tmp_path / "doctor" / doctor_files.ADDRESS).read_text()
    # Without the address the next build knows none, and the page follows.
    html = build(tmp_path)
    assert command_on(html) == f"$ pip install {wheel_in(html).name}"
    assert known not in (html / "_downloads" / "doctor" / "torchrl_doctor.py").read_text()


def test_a_new_version_takes_the_place_of_the_old_one(tmp_path):
    html = build(tmp_path)
    old, before = wheel_in(html).name, (tmp_path / "docs" / "doctor").stat().st_mtime_ns
    build(tmp_path)
    assert (tmp_path / "docs" / "doctor").stat().st_mtime_ns == before
    single = tmp_path / "docs" / "doctor" / "torchrl_doctor.py"
    text = single.read_bytes()
    single.write_bytes(b"another")
    build(tmp_path)
    assert single.read_bytes() == text
    project = tmp_path / "doctor" / "pyproject.toml"
    project.write_text(project.read_text().replace(doctor_version(), "99.0.1"))
    new = old.replace(doctor_version(), "99.0.1")
    html = build(tmp_path)
    assert [path.name for path in (tmp_path / "docs" / "doctor").glob("*.whl")] == [new]
    assert command_on(html) == f"$ pip install {new}"


def test_a_package_that_takes_no_address_stops_the_build(tmp_path):
    path = tmp_path / doctor_files.ADDRESS
    path.parent.mkdir(parents=True)
    path.write_text("SITE = 1\n")
    with pytest.raises(ExtensionError, match="takes the site's address"):
        doctor_files.with_address(tmp_path, ADDRESS)
