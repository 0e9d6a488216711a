"""The interactive page: its model without a browser, its server on the loopback, and the page in headless Chromium."""

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.play import model, serve, words
from bayesadmm_np.play.model import FAMILIES, Settings, Verdict, fits, knobs, simulate
from bayesadmm_np.play.scene import BOX, CLASS_SIZE, Belief, boundary_segment, make_scene, sign_certainty
from bayesadmm_np.play.settings import EXAMPLES
from bayesadmm_np.splitting.method import Method

needs_bokeh = pytest.mark.skipif(find_spec("bokeh") is None, reason="the page needs Bokeh: pip install '.[play]'")

# ----------------------------------------------------------------------------------------------------
# The scene
# ----------------------------------------------------------------------------------------------------


def test_skew_goes_from_equal_shares_to_one_class_each():
    mixed, apart = make_scene((-3.0, -1.5), 0.0), make_scene((-3.0, -1.5), 1.0)
    for scene in (mixed, apart):
        assert scene.points.shape == (2 * CLASS_SIZE + 1, 2)
        assert scene.owners[-1] == 0
        assert scene.labels[-1] == 1
    counts = [np.bincount(mixed.labels[:-1][mixed.owners[:-1] == k]) for k in (0, 1)]
    assert np.array_equal(counts, np.full((2, 2), CLASS_SIZE // 2))
    assert set(apart.labels[apart.owners == 0]) == {1}
    assert set(apart.labels[apart.owners == 1]) == {0}


def test_boundary_ends_on_the_edge_of_the_box_and_on_the_line():
    left, right, bottom, top = BOX
    for mean in ((1.0, 2.0, 0.5), (0.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-3.0, 0.1, 2.0)):
        ends = boundary_segment(Belief(np.array(mean), None))
        assert np.allclose(ends @ mean[:2] + mean[2], 0.0)
        for x, y in ends:
            assert np.isclose([x - left, x - right, y - bottom, y - top], 0.0).any()
            assert left - 1e-9 <= x <= right + 1e-9
            assert bottom - 1e-9 <= y <= top + 1e-9
    for mean in ((0.0, 0.0, 1.0), (1.0, 0.0, 100.0), (0.0, 1.0, -100.0), (1.0, 1.0, 100.0)):  # none is in sight
        assert boundary_segment(Belief(np.array(mean), None)) is None


def test_certainty_is_mean_over_deviation():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((3, 3))
    belief = Belief(rng.standard_normal(3), root @ root.T + np.eye(3))
    x, y = np.array([-1.0, 0.0, 2.0]), np.array([0.5, 3.0])
    certainty = sign_certainty(belief, x, y)
    assert certainty.shape == (2, 3)
    features = np.array([2.0, 3.0, 1.0])
    expected = features @ belief.mean / np.sqrt(features @ belief.covariance @ features)
    assert np.isclose(certainty[1, 2], expected, rtol=1e-13)
    assert sign_certainty(Belief(belief.mean, None), x, y) is None


# ----------------------------------------------------------------------------------------------------
# The model
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ba.methods.TABLE)
def test_every_choice_has_an_outcome_and_a_sentence(method):
    for number, family in enumerate(FAMILIES):
        check_choice(method, family, accelerated=number % 2 == 1)


def check_choice(method, family, accelerated):
    settings = Settings(method, family, rho=0.3, gamma=0.7, accelerated=accelerated, rounds=3, skew=1.0)
    outcome = simulate(settings)
    assert outcome.message[0].isupper()
    assert outcome.message.endswith(".")
    row = ba.methods.TABLE[method]()
    if not fits(method, family) or (accelerated and not (isinstance(row, Method) and row.dual_step)):
        assert outcome.verdict is Verdict.INVALID
        assert outcome.frames == ()
        assert method in outcome.message
        return
    assert outcome.verdict is not Verdict.INVALID
    assert [frame.round for frame in outcome.frames] == list(range(outcome.rounds + 1))
    assert outcome.gap.shape == (outcome.rounds + 1,)
    assert outcome.residuals.shape == (outcome.rounds, 4)
    assert (outcome.verdict is Verdict.FAILED) or outcome.failed_round is None
    for frame in outcome.frames:
        for belief in (frame.server, *frame.clients):
            assert belief.mean.shape == (3,)
            assert (belief.covariance is None) == (family in ("isotropic", "fixed"))
    if method not in ("BLR", "Newton", "JointNewton"):  # whose clients solve nothing
        assert all(len(frame.clients) == 2 for frame in outcome.frames[1:])


def test_frames_are_those_of_the_library():
    """The recorded clients are those that `run` returns, and a recorded run equals one with the default solver."""
    settings = Settings(rounds=4)
    outcome, scene = simulate(settings), make_scene(settings.outlier, settings.skew)
    prior = ba.families.FullGaussian(np.zeros(3), model.DELTA)
    for t in (1, 4):
        result = ba.run(ba.methods.BayesADMM(1.0), scene.losses(), prior, rounds=t)
        frame = outcome.frames[t]
        assert np.allclose(frame.server.mean, result.posterior.mean, atol=1e-12)
        for belief, q in zip(frame.clients, result.client_posteriors, strict=True):
            assert np.allclose(belief.mean, q.mean, atol=1e-12)
            assert np.allclose(belief.covariance, q.covariance_matrix, atol=1e-12)
        assert frame.edges == result.history[-1].edges
    pooled = ba.solve_pooled(scene.losses(), prior)
    assert np.allclose(outcome.gap, result.objective - pooled.objective, atol=1e-12)


EXPECTED = {
    "BayesADMM closes the circuit": (Verdict.CONVERGED, "closed"),
    "ADMM: the same loop with points": (Verdict.OPEN, "broadcast"),
    "One class each": (Verdict.CONVERGED, "pooled"),
    "Small ρ: a client has no minimum": (Verdict.FAILED, "client 1"),
    "… and the safeguard repairs it": (Verdict.CONVERGED, "closed"),
    "Duals along μ: not a distribution": (Verdict.FAILED, "precision"),
    "PVI: few rounds with a full covariance": (Verdict.CONVERGED, "8 rounds"),
    "PVI with points: it never settles": (Verdict.FAILED, "further away"),
    "… and Anderson mixing repairs it": (Verdict.CONVERGED, "closed"),
    "FedProx: no dual, another answer": (Verdict.OPEN, "no dual"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_show_what_they_say(name):
    outcome = simulate(EXAMPLES[name])
    verdict, text = EXPECTED[name]
    assert outcome.verdict is verdict
    assert text in outcome.message
    assert (outcome.failed_round is None) == ("Round" not in outcome.message)


def test_impossible_settings_are_explained():
    for change, word in (
        ({"rho": 0.0}, "Rho"),
        ({"rho": float("nan")}, "Rho"),
        ({"gamma": 1.5}, "Gamma"),
        ({"method": "FedAvg", "family": "isotropic", "accelerated": True}, "dual"),
        ({"method": "FedIvon"}, "diagonal"),
        ({"outlier": (float("inf"), 0.0)}, "finite"),
    ):
        outcome = simulate(dataclasses.replace(Settings(), **change))
        assert outcome.verdict is Verdict.INVALID
        assert word in outcome.message


def test_every_failure_has_a_sentence_with_the_round():
    for status in (status for status in ba.Status if status.is_failure):
        text = words.failure(status, 3, 1, Settings(), ba.methods.BayesADMM(), np.array([1.0, 0.5]))
        assert text.startswith("Round 3 failed: ")
        assert text.endswith(".")


def test_notes_name_the_controls_without_effect():
    """And every row uses the sliders that it has."""
    for settings, word in (
        (Settings("PVI", rounds=1), "ρ slider"),
        (Settings("BLR", rounds=1), "learning rate"),
        (Settings("AMA", safeguard=True, rounds=1), "safeguard"),
    ):
        assert any(word in note for note in simulate(settings).notes)
    assert simulate(Settings(rounds=1)).notes == ()
    assert knobs("BayesADMM") == ("rho", "gamma")
    assert knobs("BLR") == ("learning_rate",)
    assert [simulate(Settings("BLR", gamma=g, rounds=3)).frames[1].alpha for g in (0.1, 0.5)] == [0.1, 0.5]


# ----------------------------------------------------------------------------------------------------
# The page without a browser
# ----------------------------------------------------------------------------------------------------


def test_without_bokeh_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr("bayesadmm_np.play.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'bayesadmm-np\[play\]'"):
        serve(0, open_browser=False)


def test_the_model_needs_no_bokeh():
    code = "import sys, bayesadmm_np.play.model; print([m for m in sys.modules if m.startswith(('bokeh', 'tornado'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_bokeh
def test_the_controls_drive_the_views():
    from bokeh.document import Document

    from bayesadmm_np.play.page import OWN, Page

    page = Page(Document())
    assert page.read() == next(iter(EXAMPLES.values()))
    assert page.round.value == page.outcome.rounds == 32
    for name in EXAMPLES:
        page.example.value = name
        assert page.read() == EXAMPLES[name]
        assert page.outcome.message in page.status.text
        for at in (0, page.outcome.rounds // 2, page.outcome.rounds):
            page.round.value = at
    page.method.value = "FedIvon"
    page.run_after_pause()  # a session's event loop would call it
    assert page.example.value == OWN
    assert page.outcome.verdict is Verdict.INVALID
    assert 'data-verdict="INVALID"' in page.status.text
    page.family.value = "diagonal"
    page.run_after_pause()
    assert page.outcome.verdict is not Verdict.INVALID
    assert page.rho.disabled
    page.views[1].outlier.data = {"x": [99.0], "y": [0.04]}
    assert (page.outlier_x.value, page.outlier_y.value) == (BOX[1], 0.0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def page_url(tmp_path):
    """`serve` in a process of its own, ended by its own number."""
    port = free_port()
    code = f"from bayesadmm_np.play import serve; serve({port}, open_browser=False)"
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout.readline().decode().startswith(f"bayesadmm play: http://127.0.0.1:{port}/")
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            process.wait(timeout=20)
            process.stdout.close()
        log.seek(0)
        assert "Traceback" not in log.read()


@needs_bokeh
def test_the_page_is_served_on_the_loopback_only(page_url):
    from urllib.request import urlopen

    with urlopen(page_url, timeout=20) as answer:
        assert answer.status == 200
        text = answer.read().decode()
    assert "The duality circuit" in text
    assert "cdn." not in text
    port = int(page_url.rstrip("/").rpartition(":")[2])
    with socket.socket() as outside:
        outside.settimeout(2)
        assert outside.connect_ex(("127.0.0.2", port)) != 0  # another address of this machine


@needs_bokeh
def test_a_port_in_use_is_explained():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} of 127.0.0.1 cannot be used"):
            serve(port, open_browser=False)


# ----------------------------------------------------------------------------------------------------
# The page in headless Chromium
# ----------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
READY = (
    "return typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle "
    "&& Bokeh.documents[0].get_model_by_name('status').text.length > 0"
)
# widgets live in shadow roots: collect all text and canvases through them
SEEN = """
const found = {text: '', canvases: 0, tall: 0};
(function walk(node) {
  for (const child of node.childNodes) {
    if (child.nodeType === 3) found.text += child.textContent;
    if (child.nodeType !== 1 || ['STYLE', 'SCRIPT'].includes(child.tagName)) continue;
    if (child.tagName === 'CANVAS') { found.canvases += 1; found.tall += child.getBoundingClientRect().height > 150; }
    if (child.shadowRoot) walk(child.shadowRoot);
    walk(child);
  }
})(document.body);
return found;
"""


@pytest.fixture
def browser(tmp_path):
    if not (CHROMIUM and DRIVER and find_spec("selenium")):
        pytest.skip("NOT TESTED IN A BROWSER: needs selenium, chromium and chromedriver (chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in ("--headless=new", "--window-size=1400,900", "--disable-background-networking", "--disable-sync"):
        options.add_argument(flag)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses root, the usual user of a container
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")


def model_of(driver, name, attribute):
    return driver.execute_script(f"return Bokeh.documents[0].get_model_by_name('{name}').{attribute}")


def press_on_handle(driver, name, keys):
    """Move a slider as a reader would: focus its handle in the shadow root, and press keys."""
    from selenium.webdriver.common.action_chains import ActionChains

    handle = driver.execute_script(
        "const find = (root) => { for (const el of root.querySelectorAll('*')) { if (el.shadowRoot) {"
        "  const view = el.shadowRoot.querySelector('.noUi-handle'); const title = el.shadowRoot.textContent;"
        "  if (view && title.includes(arguments_title)) return view;"
        "  const inner = find(el.shadowRoot); if (inner) return inner; } } return null; };"
        "const arguments_title = arguments[0]; return find(document);",
        model_of(driver, name, "title"),
    )
    assert handle is not None, f"no slider {name}"
    driver.execute_script("arguments[0].focus()", handle)
    ActionChains(driver).send_keys(*keys).perform()


def requested(driver):
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    found = []
    for message in messages:
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
        elif message["method"] == "Network.webSocketCreated":
            found.append(message["params"]["url"])
    return found


@pytest.mark.browser
@needs_bokeh
def test_the_page_in_a_browser(page_url, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.get("about:blank")
    requested(browser)  # forget the browser's own start page
    browser.get(page_url)
    until(lambda: browser.execute_script(READY), "the plots")
    seen = until(lambda: (s := browser.execute_script(SEEN))["canvases"] >= 4 and s, "four canvases")
    assert seen["tall"] >= 4, seen
    assert "Converged after 32 rounds" in seen["text"]
    first = browser.get_screenshot_as_png()

    # ρ to the left: a client has no minimum
    press_on_handle(browser, "rho", [Keys.ARROW_LEFT] * 14)
    until(lambda: 'data-verdict="FAILED"' in model_of(browser, "status", "text"), "the failure")
    until(lambda: "no best answer near the server" in browser.execute_script(SEEN)["text"], "its sentence")
    assert model_of(browser, "example", "value") == "your own settings"
    until(lambda: browser.get_screenshot_as_png() != first, "other plots")

    # and back by an example; then the round slider redraws without a new run
    browser.execute_script(
        "const m = Bokeh.documents[0].get_model_by_name('example'); m.value = arguments[0]", next(iter(EXAMPLES))
    )
    until(lambda: model_of(browser, "round", "value") == 32, "the last round")
    before = browser.get_screenshot_as_png()
    press_on_handle(browser, "round", [Keys.HOME])
    until(lambda: model_of(browser, "round", "value") == 0, "round 0")
    until(lambda: browser.get_screenshot_as_png() != before, "the redrawn round")

    # the outlier is dragged with the mouse
    place = browser.execute_script(
        "const m = Bokeh.documents[0].get_model_by_name('boundary'), v = Bokeh.index.find_one(m);"
        "const r = v.canvas_view.el.getBoundingClientRect(), f = v.frame;"
        "return [r.left + f.x_scale.compute(-3), r.top + f.y_scale.compute(-1.5),"
        "        f.x_scale.compute(-1) - f.x_scale.compute(-3)]"
    )
    pointer = ActionChains(browser, duration=100)
    pointer.w3c_actions.pointer_action.move_to_location(round(place[0]), round(place[1]))
    pointer.click_and_hold().move_by_offset(round(place[2] / 2), 0).move_by_offset(round(place[2] / 2), 0).release()
    pointer.perform()
    until(lambda: abs(model_of(browser, "outlier_x", "value") + 1.0) <= 0.2, "the dragged outlier")

    # an impossible choice is a sentence
    browser.execute_script("Bokeh.documents[0].get_model_by_name('method').value = 'FedAvg'")
    until(lambda: "FedAvg is not defined for" in browser.execute_script(SEEN)["text"], "the explanation")

    # a narrow window has no sideways scrolling
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    until(lambda: browser.execute_script("return document.documentElement.scrollWidth") <= 420, "the narrow layout")

    problems = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not problems
    urls = requested(browser)
    assert any(url.startswith("ws://127.0.0.1:") for url in urls)
    elsewhere = [url for url in urls if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:"))]
    assert not elsewhere
