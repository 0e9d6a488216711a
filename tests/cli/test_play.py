"""The page of `bayesadmm play`: its core against the library, under node and in Chromium, and what a reader does."""

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.cli import play

HTML = play.FILE.read_text(encoding="utf-8")
CORE = re.search(r'<script id="core">(.*?)</script>', HTML, flags=re.DOTALL).group(1)
METHODS = play.table()["methods"]
NODE = shutil.which("node")
DIM, DELTA, TOL = 3, 0.5, 1e-6
PRIORS = {
    "isotropic": lambda: ba.families.IsotropicGaussian(np.zeros(DIM), DELTA),
    "fixed": lambda: ba.families.FixedPrecisionGaussian(np.zeros(DIM), DELTA),
    "diagonal": lambda: ba.families.DiagonalGaussian(np.zeros(DIM), DELTA),
    "block": lambda: ba.families.BlockDiagonalGaussian(np.zeros(DIM), DELTA, [2, 1]),
    "full": lambda: ba.families.FullGaussian(np.zeros(DIM), DELTA),
}
SETTINGS = {
    "method": "BayesADMM",
    "family": "full",
    "rho": 1.0,
    "gamma": 1.0,
    "accelerated": False,
    "safeguard": False,
    "rounds": 10,
    "skew": 0.5,
    "x": -3.0,
    "y": -1.5,
}

# ----------------------------------------------------------------------------------------------------
# The core against the library
# ----------------------------------------------------------------------------------------------------

SCENE = "function (settings) { return makeScene(settings); }"
RUN = """function (settings) {
  const result = run(TABLE, settings), pooled = solvePooled(settings, result.rule);
  const told = (q) => ({ mean: q.mean, precision: q.S });
  return {
    status: result.status, failed: result.failed, pooled: { ...told(pooled.q), objective: pooled.objective },
    frames: result.frames.map((frame) => ({ ...told(frame.q), sites: frame.sites, edges: frame.edges,
      alpha: frame.alpha, mixed: frame.isMixed, objective: frame.objective, clients: frame.clients?.map(told) })),
  };
}"""


def under_node(function, settings, core=CORE):
    """Return what a JavaScript function makes of each settings, with the page's core."""
    if NODE is None:
        pytest.skip("NOT TESTED WITHOUT A BROWSER: the core of play.html needs node; pytest -m browser tests it too")
    table, settings = json.dumps(play.table()), json.dumps(settings)
    code = f"{core}\nconst TABLE = {table};\nconsole.log(JSON.stringify({settings}.map({function})));"
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def grid():
    """Return 200 settings: every method and family that fit, over ρ, γ, skew, outlier, safeguard and acceleration."""
    places = [(-3.0, -1.5), (0.0, 3.0), (4.5, 3.2), (-5.0, 0.4)]
    options = itertools.cycle(itertools.product((False, False, True), (False, True)))
    numbers = itertools.cycle([(1.0, 1.0), (0.5, 0.6), (3.0, 0.3), (0.2, 1.0), (0.7, 1.0), (0.05, 0.9), (10.0, 0.5)])
    others = itertools.cycle(itertools.product(places, (0.0, 0.5, 1.0)))
    for name, row in METHODS.items():
        for family in row["families"]:
            for _ in range(5):
                (rho, gamma), ((x, y), skew), (accelerated, safeguard) = next(numbers), next(others), next(options)
                accelerated &= row["dual_step"][0] > 0
                yield {
                    **SETTINGS,
                    **{"method": name, "family": family, "rho": rho, "gamma": gamma, "skew": skew, "x": x, "y": y},
                    **{"accelerated": accelerated, "safeguard": safeguard, "rounds": 6 if accelerated else 12},
                }


def library(settings, scene):
    """Return the library's run of settings on the rows of a scene, with every server and every client."""
    losses = []
    for owner in (0, 1):
        own = [row for row in scene if row["owner"] == owner]
        losses.append(ba.losses.Logistic([row["x"] for row in own], [row["label"] for row in own]))
    make, prior = ba.methods.TABLE[settings["method"]], PRIORS[settings["family"]]()
    knobs = METHODS[settings["method"]]["knobs"]
    row = method = make(**{knob: settings[play.KNOBS[knob]] for knob in knobs})
    if settings["accelerated"]:
        method = ba.methods.Accelerated(method)
    rule = row.expectation or (ba.losses.Exact() if prior.learns_precision else ba.losses.Delta(1))
    servers = [prior.start()]
    result = ba.run(
        method,
        losses,
        prior,
        settings["rounds"],
        expectation=rule,
        safeguard=settings["safeguard"],
        callback=lambda _, q_g: servers.append(q_g),
        raise_on_failure=False,
    )
    return result, servers, ba.solve_pooled(losses, prior, expectation=rule)


def assert_same(settings, scene, found):
    """Status and round, and every server, client, dual, residual, α and objective, to 1e-6 of their size.

    The two differ by 1.5e-10 on the grid, because clients are solved to 1e-8. Mixing divides by differences of
    residuals and is chaotic where a run does not settle: with acceleration the grid takes 6 rounds, which fill its
    memory; after 10 rounds two kernels of BLAS differ by 4e-6 in the library itself.
    """
    result, servers, pooled = library(settings, scene)
    assert found["status"] == result.status.name, settings
    assert len(found["frames"]) == len(servers), settings
    if result.failure is not None:
        assert found["failed"]["round"] == result.failure.round
        assert found["failed"]["client"] == (None if result.failure.client is None else result.failure.client + 1)
    pairs = [*zip(servers, found["frames"], strict=True), (pooled.posterior, found["pooled"])]
    if len(servers) > 1 and found["frames"][-1]["clients"]:
        pairs += zip(result.client_posteriors, found["frames"][-1]["clients"], strict=True)
    for q, told in pairs:
        precision = np.linalg.inv(q.covariance_matrix)
        assert_near(told["mean"], q.mean, settings)
        assert_near(told["precision"], precision.ravel(), settings)
    for site, told in zip(result.sites, found["frames"][-1]["sites"], strict=True):
        assert_near(told[:DIM], site.linear, settings)
    objectives = [frame["objective"] for frame in found["frames"]]
    assert_near([*objectives, found["pooled"]["objective"]], [*result.objective, pooled.objective], settings)
    for record, frame in zip(result.history, found["frames"][1:], strict=True):
        edges = record.edges
        measured = [edges.broadcast, edges.natural_gradient, edges.gather, edges.dual_map]
        assert_near([*frame["edges"], frame["alpha"]], [*measured, record.alpha], settings)
        assert frame["mixed"] == record.mixed


def assert_near(told, known, settings):
    known = np.asarray(known)
    assert np.abs(np.asarray(told) - known).max() <= 1e-6 * (1.0 + np.abs(known).max()), settings


def check_grid(evaluate):
    """Hold every run of the grid to the library; it has all ends that a run can have on this page."""
    settings = list(grid())
    assert len(settings) >= 200
    runs = evaluate(RUN, settings)
    for one, scene, found in zip(settings, evaluate(SCENE, settings), runs, strict=True):
        assert_same(one, scene, found)
    ends = {found["status"] for found in runs}
    assert ends >= {"CONVERGED", "ROUND_LIMIT", "ILL_POSED_CLIENT", "NOT_A_DISTRIBUTION"}


def test_the_core_is_the_library():
    check_grid(under_node)


TWINS = {
    "the sign of the dual": ("add(site, move, step)", "add(site, move, -step)"),
    "the server's α": ("1 / (1 + 2 * method.rho)", "1 / (1 + method.rho)"),
    "σ′ of the loss": ("weight * e * p * p", "weight * e * p"),
    "the fixed step of Eq. 32": ("add(site, expected.natural), -1 / rho)", "add(site, expected.natural), -1)"),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_broken_core_is_not(name):
    right, wrong = TWINS[name]
    assert CORE.count(right) == 1
    settings = [{**SETTINGS, "rho": 2.0, "rounds": 3}]
    scene, found = (under_node(part, settings, CORE.replace(right, wrong))[0] for part in (SCENE, RUN))
    with pytest.raises(AssertionError):
        assert_same(settings[0], scene, found)


def test_the_methods_of_the_page_are_those_of_the_library():
    assert json.loads(play.TABLE.search(HTML).group()) == play.table(), "run: bayesadmm play --out FILE, and keep FILE"
    assert play.page() == HTML
    assert set(play.table()["left_out"]) == {"Newton", "JointNewton"}


def test_a_new_method_comes_by_itself(monkeypatch):
    """A row of scalars is on the page; a row with a scalar that is no product of ρ and γ is left out."""

    def halfway(rho: float = 1.0):
        return ba.methods.Method("Halfway", rho, 0.5 * rho, alpha=0.5)

    def bent(rho: float = 1.0):
        return ba.methods.Method("Bent", rho, rho**2)

    monkeypatch.setattr(ba.methods, "TABLE", {"halfway": halfway, "bent": bent})
    table = play.table()
    assert table["methods"]["halfway"]["dual_step"] == [0.5, 1, 0]
    assert "dual_step" in table["left_out"]["bent"]
    assert '"halfway"' in play.page()


EXAMPLES = {
    "BayesADMM closes the circuit": ("CONVERGED", "closed"),
    "ADMM: the same loop with points": ("OPEN", "broadcast"),
    "One class each": ("CONVERGED", "pooled"),
    "Small ρ: a client has no minimum": ("FAILED", "client 1"),
    "… and the safeguard repairs it": ("CONVERGED", "closed"),
    "Duals along μ: not a distribution": ("FAILED", "precision"),
    "PVI: few rounds with a full covariance": ("CONVERGED", "8 rounds"),
    "PVI with points: it never settles": ("FAILED", "further away"),
    "… and Anderson mixing repairs it": ("CONVERGED", "closed"),
    "FedProx: no dual, another answer": ("OPEN", "no dual"),
}


def test_examples_show_what_they_say():
    constants = [
        re.search(rf"const {name} = .*?}};\n", HTML, flags=re.DOTALL).group() for name in ("START", "EXAMPLES")
    ]
    ends = "Object.entries(EXAMPLES).map(([name, own]) => [name, simulate(TABLE, { ...START, ...own })])"
    function = f"function () {{ {''.join(constants)} return Object.fromEntries({ends}); }}"
    found = under_node(function, [None])[0]
    assert list(found) == list(EXAMPLES)
    for name, (verdict, words) in EXAMPLES.items():
        assert found[name]["verdict"] == verdict
        assert words in found[name]["message"]


def test_every_choice_has_a_sentence():
    """Every method with every family, also where they do not fit or have nothing to accelerate."""
    settings = [
        {**SETTINGS, "method": name, "family": family, "accelerated": True, "rounds": 3}
        for name in METHODS
        for family in PRIORS
    ]
    told = under_node(
        "function (s) { const { verdict, message } = simulate(TABLE, s); return [verdict, message]; }", settings
    )
    for one, (verdict, message) in zip(settings, told, strict=True):
        row = METHODS[one["method"]]
        is_valid = one["family"] in row["families"] and row["dual_step"][0] > 0
        assert (verdict != "INVALID") == is_valid
        assert message[0].isupper()
        assert message.endswith(".")


# ----------------------------------------------------------------------------------------------------
# The command, and the page of the site
# ----------------------------------------------------------------------------------------------------


def test_the_command_opens_the_file_or_writes_a_copy(bayesadmm, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(play.webbrowser, "open", opened.append)
    assert bayesadmm("play", "--out", tmp_path / "copy.html")[0] == 0
    assert (tmp_path / "copy.html").read_text(encoding="utf-8") == HTML
    assert not opened
    code, out, _ = bayesadmm("play")
    assert code == 0
    assert opened == [out.strip()] == [play.FILE.as_uri()]


def test_a_file_that_cannot_be_written_is_one_line(bayesadmm, tmp_path, monkeypatch):
    """No device and not the page itself is replaced, and a link is replaced in place of what it leads to."""
    (tmp_path / "page.html").symlink_to(play.FILE)
    for out in (tmp_path / "nowhere" / "copy.html", tmp_path, os.devnull, tmp_path / "page.html", play.FILE):
        code, _, err = bayesadmm("play", "--out", out)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "--out" in err
    (tmp_path / "own.html").write_text("mine", encoding="utf-8")
    (tmp_path / "link.html").symlink_to(tmp_path / "own.html")
    assert bayesadmm("play", "--out", tmp_path / "link.html")[0] == 0
    assert (tmp_path / "own.html").read_text(encoding="utf-8") == "mine"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(play, "replace_text", full)
    code, _, err = bayesadmm("play", "--out", tmp_path / "copy.html")
    assert (code, "None" in err) == (2, False)


def test_the_file_fetches_nothing():
    """No address of another file or server is in it, but for the lessons of the site, which exist."""
    assert not re.findall(r"(?:https?:)?//[a-z]|@import|url\((?!#)|\bimport\b|\bfetch\(|XMLHttpRequest|src=", HTML)
    names = re.findall(r'\d: "(\d\d_\w+)"', HTML)
    assert len(names) == 7
    lessons = Path(__file__).parents[2] / "docs" / "lessons"
    assert [name for name in names if not (lessons / f"{name}.py").exists()] == []
    assert 'data-lessons="lessons/"' in play.page(lessons="lessons/")


# ----------------------------------------------------------------------------------------------------
# The page in headless Chromium
# ----------------------------------------------------------------------------------------------------


@pytest.fixture
def page(chromium):
    """Open the file as a reader does, at settings of an address; return a function that reads the page."""
    chromium.get("about:blank")
    chromium.get_log("browser"), chromium.get_log("performance")
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def open_at(address=""):
        chromium.get("about:blank")  # another address of an open page would be a step of its history
        chromium.get(play.FILE.as_uri() + address)
        return chromium

    yield open_at
    problems = [entry for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not problems
    messages = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith((play.FILE.as_uri(), "data:", "about:"))] == []


def told(driver, script):
    return driver.execute_script(f"return {script}")


def verdict(driver):
    return told(driver, "document.getElementById('status').dataset.verdict")


def message(driver):
    return told(driver, "document.getElementById('message').textContent")


def press(driver, name, *keys):
    from selenium.webdriver.common.by import By

    driver.find_element(By.ID, name).send_keys(*keys)


def until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")


@pytest.mark.browser
def test_the_core_in_a_browser_is_the_library(page):
    driver = page()
    check_grid(lambda function, settings: driver.execute_script(f"return arguments[0].map({function})", settings))


@pytest.mark.browser
def test_keys_move_a_slider_and_back_undoes_it(page):
    from selenium.webdriver.common.keys import Keys

    driver = page()
    assert message(driver).startswith("Converged after 32 rounds")
    first = told(driver, "document.getElementById('boundary').innerHTML")
    press(driver, "rho", *[Keys.ARROW_LEFT] * 10)
    assert verdict(driver) == "FAILED"
    assert "no best answer near the server" in message(driver)
    assert told(driver, "document.getElementById('example').value") == "your own settings"
    assert told(driver, "document.getElementById('boundary').innerHTML") != first
    until(lambda: "rho=0.2&" in told(driver, "location.hash"), "the address, once the slider rests")
    driver.back()
    until(lambda: verdict(driver) == "CONVERGED", "the settings of before")
    assert told(driver, "document.getElementById('boundary').innerHTML") == first
    driver.forward()
    until(lambda: verdict(driver) == "FAILED", "one step forward")


@pytest.mark.browser
def test_an_address_is_the_page(page):
    """Every setting is in the address, and what it cannot be is named and left at its first value."""
    address = (
        "#method=PVI&family=block&rho=0.33&gamma=0.41&accelerated=1&safeguard=1&rounds=9&skew=0.73&x=1.5&y=-2.2"
        "&round=4&coordinate=2"
    )
    driver = page(address)
    assert told(driver, "address()") == address
    assert told(driver, "document.querySelector('output[for=round]').textContent") == "4 of 9"
    seen = told(driver, "document.getElementById('views').innerHTML")
    driver = page(address)
    assert told(driver, "document.getElementById('views').innerHTML") == seen
    driver = page("#method=Nope&rho=99&x=abc&rounds=2.5&safeguard=yes&constructor=1&skew=0.2")
    assert told(driver, "settings") == {**SETTINGS, "rounds": 40, "skew": 0.2}
    notes = told(driver, "document.getElementById('notes').textContent")
    assert all(
        part in notes for part in ("method=Nope", "rho=99", "x=abc", "rounds=2.5", "safeguard=yes", "constructor=1")
    )


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1440])
def test_a_long_address_leaves_the_page_as_large_as_it_is(page, width):
    """The list of what cannot be taken is cut to eight entries of 40 characters, which take a few lines."""
    driver = page()
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    extent = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    _, height = told(page("#skew=0.5"), extent)
    for wrong in ("y" * 200_000, "&".join(f"k{i}=1" for i in range(20_000)), "&".join(["z" * 500] * 9)):
        wide, high = told(page(f"#{wrong}"), extent)
        assert wide <= width
        assert high <= height + 300
    assert "and 1 more" in told(driver, "document.getElementById('notes').textContent")


@pytest.mark.browser
def test_a_number_of_the_address_is_a_decimal(page):
    driver = page("#rho=0x5&gamma=0b1&rounds=1e1&skew=%200.3&x=%2B2.&y=.5")
    assert told(driver, "settings") == {**SETTINGS, "rounds": 40, "x": 2, "y": 0.5}
    notes = told(driver, "document.getElementById('notes').textContent")
    assert all(part in notes for part in ("rho=0x5", "gamma=0b1", "rounds=1e1", "skew= 0.3"))


@pytest.mark.browser
def test_rounds_are_looked_at_and_played(page):
    from selenium.webdriver.common.keys import Keys

    driver = page("#method=PVI")
    press(driver, "round", Keys.HOME)
    assert "the start" in told(driver, "document.getElementById('circuit').textContent")
    press(driver, "play", Keys.ENTER)
    until(lambda: told(driver, "look.round") == 8, "the last round")
    assert "round 8" in told(driver, "document.getElementById('circuit').textContent")
    until(lambda: "round=8" in told(driver, "location.hash"), "its address")


@pytest.mark.browser
def test_the_outlier_is_dragged(page):
    from selenium.webdriver.common.action_chains import ActionChains

    driver = page()
    left, top, width = told(driver, "(({ left, top, width }) => [left, top, width])(boundary.getBoundingClientRect())")
    pointer, unit = ActionChains(driver, duration=100), width / 10
    pointer.w3c_actions.pointer_action.move_to_location(round(left + 2 * unit), round(top + 5.1 * unit))
    pointer.click_and_hold().move_by_offset(round(unit), 0).move_by_offset(round(unit), 0).release().perform()
    until(lambda: abs(told(driver, "settings.x") + 1.0) <= 0.1, "the dragged outlier")
    assert told(driver, "settings.y") == -1.5
    until(lambda: f"x={told(driver, 'settings.x')}&" in told(driver, "location.hash"), "its address")


@pytest.mark.browser
def test_an_impossible_choice_is_a_sentence(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    driver = page()
    Select(driver.find_element(By.ID, "method")).select_by_visible_text("FedAvg")
    assert verdict(driver) == "INVALID"
    assert message(driver).startswith("FedAvg is not defined for the full covariance family")
    Select(driver.find_element(By.ID, "family")).select_by_value("isotropic")
    assert verdict(driver) != "INVALID"
    assert told(driver, "document.getElementById('rho').disabled")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 800, 1440])
def test_nothing_is_wider_than_the_window_and_every_control_has_a_name(page, width):
    driver = page()
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.refresh()
    assert told(driver, "document.documentElement.scrollWidth") <= width
    assert told(driver, "document.querySelectorAll('svg[role=img]').length") == 5
    unnamed = "[...document.querySelectorAll('input, select')].filter((e) => !e.labels.length && !e.ariaLabel).length"
    assert told(driver, unnamed) == 0
