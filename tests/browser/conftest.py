"""One JupyterLab on learners' copies of the course, the site, and pages that fail on a script's error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.lab import CHROMIUM_FLAGS, running_lab
from tests.browser.pages import ADDRESS, NO_NETWORK, served
from tools.copies import copy_course
from tools.outside import find_chromium
from tools.paths import ROOT


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """What a learner gets from `make lab`; Jupyter's settings and signatures are the test's own."""
    home = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(home / name.lower()))
        patch.delenv("PYTHONWARNINGS", raising=False)
        patch.delenv("JUPYTER_PATH", raising=False)
        copy_course(ROOT, home / "work")
        yield home / "work"


@pytest.fixture(scope="session")
def lab(work):
    with running_lab(work) as address:
        yield address


@pytest.fixture(scope="session")
def chromium():
    """`chromium(flag, …)` starts a browser with these flags beside the usual ones."""
    path = find_chromium()
    if path is None:
        pytest.fail("no Chromium on this machine; `make check` installs Debian's where it may")
    with sync_playwright() as playwright:
        yield lambda *flags: playwright.chromium.launch(executable_path=path, args=[*CHROMIUM_FLAGS, *flags])


@pytest.fixture(scope="session")
def browser(chromium):
    browser = chromium()
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def site():
    """The address of the site, built once and served from this machine."""
    environment = {**os.environ, "SITE_URL": ADDRESS}
    subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, env=environment, check=True)
    with served() as address:
        yield address


@pytest.fixture(scope="session")
def offline(chromium):
    """A browser that reaches this machine alone."""
    browser = chromium(NO_NETWORK)
    yield browser
    browser.close()


@pytest.fixture
def page(browser, tmp_path):
    """A page; a script's error on it fails the test, and a picture of its end is kept beside the test's files."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(120_000)  # a busy machine is no fault of the page
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.screenshot(path=tmp_path / "page.png")
    page.close()
    assert errors == []
