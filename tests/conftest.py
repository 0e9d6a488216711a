import os
import shutil
import sys
from importlib.util import find_spec

os.environ["MPLBACKEND"] = "Agg"  # before anything imports matplotlib

import numpy as np
import pytest
from hypothesis import settings

pytest.register_assert_rewrite("oracles")

settings.register_profile("default", derandomize=True, max_examples=25, deadline=None)
settings.register_profile("wide", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def one_thread():
    """For tests of networks: torch's threads would wait for each other in every operation of a busy machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def registries():
    """What a test registers is forgotten after it."""
    from bayesadmm_np import clients, families, losses, methods
    from bayesadmm_np.estimators import KINDS
    from bayesadmm_np.splitting.step import STEPS
    from bayesadmm_np.splitting.tree import MEMORIES

    known = (families.FAMILIES, losses.LOSSES, losses.RULES, clients.SOLVERS)
    known += (methods.TABLE, methods.DUAL_RULES, methods.SCHEDULES, KINDS, STEPS, MEMORIES)
    before = [dict(registry) for registry in known]
    yield
    for registry, things in zip(known, before, strict=True):
        registry._things = things


@pytest.fixture
def bayesadmm(monkeypatch, capsys):
    """Run the command in this process; return exit code, standard output and standard error."""
    from bayesadmm_np import cli

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesadmm", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        code = stopped.value.code
        return (0 if code is None else code), out, err

    return run


@pytest.fixture
def call(bayesadmm, tmp_path, monkeypatch):
    """Type a command in a folder of the test's own; return exit code, standard output and standard error."""
    pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
    monkeypatch.chdir(tmp_path)
    return lambda text: bayesadmm(*text.split())


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Headless Chromium, with its log of the network."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (browser and driver and find_spec("selenium")):
        pytest.skip("NOT TESTED IN A BROWSER: needs selenium, chromium and chromedriver (chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in ("--headless=new", "--window-size=1440,900", "--disable-background-networking", "--disable-sync"):
        options.add_argument(flag)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses root, the usual user of a container
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    window = webdriver.Chrome(options, Service(driver))
    yield window
    window.quit()
