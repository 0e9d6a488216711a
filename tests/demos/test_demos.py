"""Every demo as a script and as numbers: its claims hold, and fail when a number is doctored; what agrees is kept."""

import copy
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the demos need the extra `demos`")
pytest.importorskip("sklearn", reason="the demos need the extra `demos`")

import bayesadmm_np as ba
from bayesadmm_np.demos import fig3_circuit, fig4_outlier, fig5b_logistic, reproduce, shared, style

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "figures"
SMALL = {
    "3": {},
    "4": {"draws": 6},
    "5a": {"first": 120, "side": 4, "rounds": 4, "admm_rhos": (5.0, 25.0), "bregman_rhos": (0.2,)},
    "5b": {"first": 300, "side": 4, "rounds": (12, 8), "points": 40},
}


@pytest.fixture
def small(results):
    """Compute each small figure once; a test may doctor what it gets."""

    def get(key):
        if key not in results:
            demo = reproduce.load(key)
            results[key] = demo.accuracy.stated(demo.compute(**SMALL[key]))
        return copy.deepcopy(results[key])

    return get


def committed(key):
    path = FIGURES / reproduce.load(key).results
    if not path.exists():
        pytest.skip(f"{path.name} is not there: run `bayesadmm reproduce`")
    return shared.read_results(path)[key]


def failing(key, numbers):
    return [claim[0] for claim in reproduce.load(key).claims(numbers) if not claim[1]]


def script(name, *arguments, **environment):
    """Run a demo as anyone would, from another folder."""
    command = [sys.executable, str(ROOT / "demos" / f"{name}.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=False, env=environment, cwd=ROOT.parent
    )


# As scripts ----------------------------------------------------------------------------------


def test_a_script_explains_itself():
    demo = reproduce.load("4")
    done = script(demo.name, "--help")
    assert done.returncode == 0, done.stderr
    assert sys.modules[demo.compute.__module__].__doc__.splitlines()[0] in done.stdout
    for option in ("--out", "--force"):
        assert option in done.stdout
    assert "track" not in done.stdout


def test_a_script_writes_its_figure_and_its_claims(tmp_path):
    options = []
    for name, value in SMALL["5a"].items():
        options += [f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else [value])]
    demo = reproduce.load("5a")
    done = script(demo.name, *options, "--out", tmp_path, "--no-progress")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {f"{demo.name}.svg", f"{demo.name}.png", "results.json"}
    claims = shared.read_results(tmp_path / "results.json")["5a"]["claims"]
    for claim in claims:
        assert f"  ✓ {claim['claim']}: {claim['measured']}" in done.stdout


def test_a_script_ends_with_1_when_a_claim_does_not_hold(tmp_path):
    """One round is not enough for ADMM to arrive; and an option of several values may get one."""
    done = script("fig4_outlier", "--rounds", 1, "--draws", 1, "--out", tmp_path, "--no-progress")
    assert done.returncode == 1, done.stderr
    assert "✗" in done.stdout


def test_a_script_says_what_is_wrong_in_a_line(tmp_path):
    done = script("fig5a_ridge", "--dataset", "cifar", "--out", tmp_path, "--no-progress")
    assert done.returncode == 1
    assert done.stderr.strip() == "fig5a_ridge: dataset must be one of digits, mnist, got 'cifar'."


@pytest.mark.parametrize(
    ("key", "settings", "words"),
    [
        ("3", {"rounds": 0}, "rounds must be at least 1"),
        ("4", {"draws": 0}, "draws must be at least 1"),
        ("5a", {"side": 3}, "side must be one of"),
        ("5b", {"rounds": (5,)}, "rounds must be two numbers"),
        ("5b", {"rounds": (0, 5)}, "rounds must be at least 1"),
    ],
)
def test_a_setting_out_of_range_is_named_before_anything_is_written(key, settings, words, tmp_path):
    with pytest.raises(ValueError, match=f"^{words}"):
        reproduce.load(key).run(tmp_path / "out", progress=False, echo=lambda _: None, **settings)
    assert not (tmp_path / "out").exists()


# What agrees is kept -------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path):
    """A repository that holds the figures as they lie here; returns the folder, and a reader of its status."""
    folder = tmp_path / "clone"
    shutil.copytree(FIGURES, folder / "figures")

    def git(*arguments):
        settings = ("user.name=a", "user.email=a", "core.autocrlf=false", "commit.gpgsign=false")
        identity = [part for setting in settings for part in ("-c", setting)]
        done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout

    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "figures")
    return folder / "figures", lambda: git("status", "--porcelain")


def test_reproducing_leaves_a_clean_tree(clone):
    """The two figures that are quick; `.ci/run` does the same with all, in a fresh clone."""
    figures, status = clone
    lines = []
    assert reproduce.reproduce(["3", "4"], out=figures, progress=False, echo=lines.append)
    assert status() == ""
    assert sum("nothing is written" in line for line in lines) == 2


@pytest.mark.slow
def test_reproducing_everything_leaves_a_clean_tree(clone):
    figures, status = clone
    assert reproduce.reproduce(out=figures, progress=False, echo=lambda _: None)
    assert status() == ""


def test_another_kernel_of_the_linear_algebra_changes_nothing(clone):
    """OpenBLAS, where NumPy has it, sums in another order with its oldest kernel."""
    figures, status = clone
    done = script("fig4_outlier", "--out", figures, "--no-progress", OPENBLAS_CORETYPE="Prescott")
    assert done.returncode == 0, done.stderr
    assert "nothing is written" in done.stdout
    assert status() == ""


def test_a_changed_number_is_noticed_and_said(clone):
    """Broken twin: one number of the results file is off by two units of its last stated digit."""
    figures, status = clone
    path = figures / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    covariance = results["figures"]["4"]["numbers"]["covariance"]
    good = covariance[0][1]
    bad = covariance[0][1] = good + 2 * fig4_outlier.ACCURACY.unit(good)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = []
    assert reproduce.reproduce(["4"], out=figures, progress=False, echo=lines.append)
    assert any("1 number is not that of" in line for line in lines)
    assert any(f"covariance[0][1] was {bad:.9g}, is {good:.6g}"[:-1] in line for line in lines)
    assert "results.json" not in status()  # it is again what it was; a picture's bytes are those of this matplotlib


def test_a_missing_figure_is_drawn_and_force_writes_everything(clone):
    figures, _ = clone
    before = (figures / "fig3_circuit.svg").read_bytes()
    (figures / "fig3_circuit.svg").unlink()
    lines = []
    reproduce.reproduce(["3"], out=figures, progress=False, echo=lines.append)
    assert b"<svg" in (figures / "fig3_circuit.svg").read_bytes()
    assert not any("nothing is written" in line for line in lines)
    (figures / "fig3_circuit.svg").write_text("")
    reproduce.reproduce(["3"], out=figures, progress=False, echo=lines.append)
    assert any("not compared" in line and "--force" in line for line in lines)  # the bytes are those of one matplotlib
    assert (figures / "fig3_circuit.svg").read_bytes() == b""
    reproduce.reproduce(["3"], out=figures, progress=False, force=True, echo=lines.append)
    assert len((figures / "fig3_circuit.svg").read_bytes()) > len(before) / 2


@pytest.mark.parametrize("key", reproduce.FIGURES)
def test_what_is_said_of_the_committed_numbers_is_true(key):
    """No run: claims, notes and accuracy follow from the numbers."""
    entry = committed(key)
    assert reproduce.load(key).entry(entry["numbers"]) == entry, "run `bayesadmm reproduce`"
    assert all(claim["holds"] for claim in entry["claims"])


@pytest.mark.parametrize("key", reproduce.FIGURES)
def test_the_committed_figure_is_drawn_from_the_committed_numbers(key, tmp_path):
    """The same shapes; their bytes depend on the version of matplotlib."""
    demo, numbers = reproduce.load(key), committed(key)["numbers"]
    svg, png = style.save(demo.picture(numbers), tmp_path, demo.name)
    old = FIGURES / svg.name
    assert svg.read_text(encoding="utf-8").count("<path") > 5
    assert svg.read_text(encoding="utf-8").count("<use") == old.read_text(encoding="utf-8").count("<use")
    for path in (png, FIGURES / png.name):
        text = path.read_bytes()
        assert b"Software" not in text
        assert b"tIME" not in text  # neither a version nor a time


def test_the_accuracy_is_that_of_the_digits():
    accuracy = shared.Accuracy(digits=3, absolute=1e-5)
    assert accuracy.stated({"a": [1.23456, -0.00123456], "b": (1e-6, 0.0, 3, None, "x")}) == {
        "a": [1.23, -0.00123],
        "b": [0.0, 0.0, 3, None, "x"],
    }
    assert accuracy.stated(123456.0) == 123000.0
    assert not list(differences := shared.differences({"a": [1.23]}, {"a": [1.2345]}, accuracy)), differences


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ([1.23, 4.0], [1.23, 4.02], ["[1] was 4, is 4.02 (stated to 1e-02)"]),
        ({"a": 1e-6}, {"a": 3e-5}, ["a was 1e-06, is 3e-05 (stated to 1e-05)"]),
        ({"a": None}, {"a": 0.5}, ["a was None, is 0.5"]),
        ({"a": 0.5}, {"a": math.nan}, ["a was 0.5, is nan (stated to 1e-03)"]),
        ({"a": 3}, {"a": 4}, ["a was 3, is 4"]),
        ({"a": [1.0]}, {"a": [1.0, 2.0]}, ["a was a list of 1, is a list of 2"]),
        ({"a": "x"}, {"b": "x"}, [" was {a}, is {b}"]),
        ({"a": [1.0, 2.0]}, {"a": np.array([1.0, 2.0])}, []),
        ({"a": 1.0}, {"a": np.float64(1.0)}, []),
    ],
)
def test_differences_are_said(old, new, words):
    assert list(shared.differences(old, new, shared.Accuracy(digits=3, absolute=1e-5))) == words


# Numbers and claims --------------------------------------------------------------------------


@pytest.mark.parametrize("key", SMALL)
def test_the_claims_hold(small, key):
    numbers = small(key)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert list(reproduce.load(key).claims(numbers))
    assert failing(key, numbers) == []


def test_circuit_claims_fail_on_an_open_edge(small):
    for edge in fig3_circuit.FLOWS:
        numbers = small("3")
        numbers["bayes"]["snapshots"][-1]["residuals"][edge] = 1e-3
        assert any("BayesADMM: all four edges" in text for text in failing("3", numbers))
    numbers = small("3")
    numbers["admm"]["pooled_residual"] = 1e-3
    assert failing("3", numbers) == ["ADMM: the closed circuit is the pooled solution"]


def test_circuit_residuals_are_those_of_the_equations(small):
    """ADMM's edges by hand, from the vectors that are drawn, which are stated to six digits."""
    losses = fig4_outlier.problem()
    start, first = small("3")["admm"]["snapshots"][:2]
    zero = np.zeros(3)
    at_start = max(np.linalg.norm(loss.gradient(zero)) for loss in losses) / math.sqrt(3)
    assert start["residuals"]["natural_gradient"] == pytest.approx(at_start, rel=1e-5)
    assert start["residuals"]["broadcast"] == start["residuals"]["gather"] == 0
    # a gradient of seven rows of length below 5 moves by at most 7 · 25/4 · 1e-6 with θ
    gradient = losses[0].gradient(np.array(first["client1"][0]))
    np.testing.assert_allclose(first["dual1"][0], -gradient, rtol=0, atol=1e-4)
    prior = ba.families.IsotropicGaussian(zero, 0.2)
    duals = [site.linear for site in ba.run(ba.methods.ADMM(1.0), losses, prior, rounds=1).sites]
    np.testing.assert_allclose(first["dual_server"][0], 0.2 * np.array(first["server"][0]), rtol=1e-5)
    gather = np.linalg.norm(first["dual_server"][0] - sum(duals)) / math.sqrt(3)
    assert first["residuals"]["gather"] == pytest.approx(gather, rel=1e-5)


def test_outlier_claims_fail_when_the_counts_are_swapped(small):
    """ADMM at the paper's ρ and BayesADMM, on the points of panel A and in the draws."""
    numbers = small("4")
    for counts in (numbers["curves"], numbers["draws"]["with"]):
        counts[fig4_outlier.SMALL], counts[fig4_outlier.BAYES] = (
            counts[fig4_outlier.BAYES],
            counts[fig4_outlier.SMALL],
        )
    assert len(failing("4", numbers)) >= 5


def test_outlier_claim_fails_on_an_unfounded_report_of_no_minimum(small):
    numbers = small("4")
    assert numbers["small_rho"]["status"] == "ILL_POSED_CLIENT"
    numbers["small_rho"]["least_curvature"] = 0.5
    assert len(failing("4", numbers)) == 1


def test_outlier_claim_fails_where_the_posterior_is_widest_at_the_outlier(small):
    """The sd of the logit grows with the covariance along the outlier's row, (3, 2.5, 1)."""
    numbers = small("4")
    row = np.array([*fig4_outlier.OUTLIER, 1.0])
    numbers["covariance"] = (np.array(numbers["covariance"]) + np.outer(row, row)).tolist()
    assert [text for text in failing("4", numbers) if "unsure" in text]


def test_outlier_rounds_are_counted_to_the_stated_criterion(small):
    for curve in small("4")["curves"].values():
        inside = np.array(curve["distance"]) <= 1.0
        assert inside[curve["rounds"] - 1 :].all()
        assert curve["rounds"] == 1 or not inside[curve["rounds"] - 2]
    close, rounds, longer = fig4_outlier.arrive(
        [np.array([2.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.04])], [1.0, 0.0, 0.0]
    )
    assert close == pytest.approx([0.0, 0.8])
    assert (rounds, longer) == (1, 2)  # the length is off by 100 % in round 1


def test_admm_in_a_metric_is_admm_of_the_library():
    """M = ρI; client solves end at residuals of 1e-8 and 1e-10. Twin: another ρ."""
    losses, prior = fig4_outlier.problem(), ba.families.IsotropicGaussian(np.zeros(3), fig4_outlier.DELTA)
    result = ba.run(ba.methods.ADMM(0.7), losses, prior, 6).posterior.mean
    own, other = (
        list(fig4_outlier.in_metric(losses, rho * np.eye(3), fig4_outlier.DELTA, 6))[-1] for rho in (0.7, 0.8)
    )
    np.testing.assert_allclose(own, result, rtol=0, atol=1e-6)
    assert np.abs(other - result).max() > 1e-3


# Marks ---------------------------------------------------------------------------------------


def marked(folder, claim):
    """What a run prints of a claim, what it writes of it, and whether it fails."""
    lines, blank = [], {"draw": lambda _: style.new_figure(1, 1), "notes": lambda _: iter(())}
    demo = shared.Demo("x", "blank", "Blank", lambda track=iter: {"a": 1.0}, lambda _: [claim], **blank)
    well = "✗" not in demo.run(folder, progress=False, echo=lines.append)
    (entry,) = shared.read_results(folder / "results.json")["x"]["claims"]
    return lines[1].strip(), entry, well


def test_a_claim_is_marked_as_held_failed_or_not_the_papers(tmp_path):
    """A claim that is not the paper's is no failure."""
    line, entry, well = marked(tmp_path / "1", ("two", True, "2"))
    assert (line, well, entry) == ("✓ two: 2", True, {"claim": "two", "holds": True, "measured": "2"})
    line, entry, well = marked(tmp_path / "2", shared.Claim("two", True, "2", "three", False))
    assert (line, well) == ("≠ paper: two: 2 (the paper: three)", True)
    assert (entry["paper"], entry["agrees"]) == ("three", False)
    assert marked(tmp_path / "3", shared.Claim("two", True, "2", "two"))[::2] == ("✓ two: 2", True)
    assert marked(tmp_path / "4", shared.Claim("two", False, "3", "three", False))[::2] == ("✗ two: 3", False)


def test_the_picture_is_named_even_if_unchanged_and_claims_are_counted(clone):
    """Every line of a claim has a mark, and the counts are those of the marks."""
    figures, _ = clone
    lines = []
    reproduce.reproduce(["4"], out=figures, progress=False, echo=lines.append)
    assert sum(str(figures / "fig4_outlier.svg") in line for line in lines) == 1
    held, other = (sum(line.startswith(f"  {sign} ") for line in lines) for sign in ("✓", "≠ paper:"))
    assert (held, other) == (5, 4)
    assert lines[-2].split(", ") == ["\n9 claims hold", "4 of them differ from the paper (≠ paper)"]


def test_a_circuit_that_is_not_closed_has_no_round_of_closing():
    """Twin: the committed run, which closes."""
    (short,) = fig3_circuit.notes(numbers := fig3_circuit.compute(rounds=2))
    assert max(numbers["admm"]["snapshots"][-1]["residuals"].values()) > 0.1
    assert short.count("not within 2") == 2
    assert "not" not in committed("3")["notes"][0]


@pytest.mark.parametrize("round_", [1, 2])
def test_ridge_claims_fail_when_one_round_is_not_enough(small, round_):
    numbers = small("5a")
    numbers["curves"][-1]["error"][round_] = 1e-6
    assert failing("5a", numbers)


def test_ridge_claims_fail_when_admm_is_as_good(small):
    numbers = small("5a")
    assert numbers["curves"][0]["method"] == "ADMM"
    numbers["curves"][0]["error"] = numbers["curves"][-1]["error"]
    assert failing("5a", numbers)


def test_logistic_claims_fail_when_methods_are_swapped(small):
    numbers = small("5b")
    curves = {curve["label"]: curve for curve in numbers["diagonal"]["curves"]}
    pvi, fast = curves[fig5b_logistic.PVI], curves[fig5b_logistic.FAST]
    pvi["label"], fast["label"] = fast["label"], pvi["label"]
    assert len(failing("5b", numbers)) >= 2


def test_logistic_claims_fail_when_full_pvi_diverges(small):
    numbers = small("5b")
    assert numbers["full"]["curves"][0]["label"] == fig5b_logistic.PVI
    numbers["full"]["curves"][0]["gap"] = [1.0, *([5.0] * 8)]
    assert failing("5b", numbers)


def test_a_failed_run_is_marked(small):
    """✗ where a run ended, in the figure and in the notes."""
    numbers = small("5b")
    demo, curve = fig5b_logistic.DEMO, numbers["full"]["curves"][0]
    assert curve["status"] == "CONVERGED"

    def marks():
        lines = demo.picture(numbers).axes[1].lines
        return sum(line.get_marker() == "x" and len(line.get_xdata()) > 0 for line in lines)

    before = marks()
    curve["status"] = "ILL_POSED_CLIENT"
    assert marks() == before + 1
    assert any("ILL_POSED_CLIENT" in note for note in demo.notes(numbers))


def test_logistic_twins_are_those_of_the_four_that_carry_the_finding(small):
    """Twin of the claim: a curve that leaves its twin by more than two rounds."""
    numbers = small("5b")
    for panel in ("diagonal", "full"):
        assert {c["label"] for c in numbers[panel]["curves"] if "mean" in c} <= set(fig5b_logistic.STRONG)
    plain = next(c for c in numbers["full"]["curves"] if c["label"] == fig5b_logistic.BAYES1)
    assert (shared.failed(plain), shared.failed(plain["mean"])) == (True, False)
    pvi = next(c for c in numbers["full"]["curves"] if c["label"] == fig5b_logistic.PVI)
    pvi["mean"]["rounds_to_near"] += 3
    assert [text for text in failing("5b", numbers) if "twin" in text]


TINY = {"first": 200, "side": 2, "rounds": (2, 2), "points": 40}


def test_a_method_of_ones_own_is_drawn_into_figure_5b(tmp_path):
    """From Python, as a mapping; twin: the row that it equals, BayesADMM with α = 1/(1 + 5)."""
    own = ba.methods.Method("own", rho=1.0, dual_step=1.0, alpha=1 / 6)
    numbers = fig5b_logistic.compute(**TINY, add={"own": own})
    curves = {curve["label"]: curve["gap"] for curve in numbers["diagonal"]["curves"]}
    np.testing.assert_allclose(curves["own"], curves[fig5b_logistic.BAYES1], rtol=1e-6)
    assert "own" in [text.get_text() for text in fig5b_logistic.DEMO.picture(numbers).legends[0].get_texts()]


def test_an_added_curve_takes_no_part_in_claims(small):
    """A curve that is as quick as the quickest. Twin: the same curve as a built-in one fails the claim "first"."""
    numbers = small("5b")
    before = list(fig5b_logistic.claims(numbers))
    for panel in ("diagonal", "full"):
        curves = numbers[panel]["curves"]
        fast = next(curve for curve in curves if curve["label"] == fig5b_logistic.FAST)
        curves.append(fast | {"label": "mine", "added": True})
    assert list(fig5b_logistic.claims(numbers)) == before
    del numbers["diagonal"]["curves"][-1]["added"]
    assert [text for text in failing("5b", numbers) if "first" in text]


def test_an_added_method_needs_a_name_of_its_own():
    with pytest.raises(ValueError, match="no curve has"):
        fig5b_logistic.compute(**TINY, add={fig5b_logistic.PVI: ba.methods.PVI(0.1)})


def test_a_method_of_ones_own_is_drawn_by_the_script(tmp_path):
    """A method or a function that returns one; what is committed stays, and a wrong name is a line."""
    (tmp_path / "mine.py").write_text("import bayesadmm_np as ba\n\n\ndef mine():\n    return ba.methods.PVI(0.7)\n")
    command = [sys.executable, str(ROOT / "demos" / "fig5b_logistic.py"), "--no-progress", "--add"]
    tiny = ["--first", "200", "--side", "2", "--rounds", "2", "2", "--points", "40"]
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "check": False, "cwd": tmp_path}
    options["env"] = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([*command, "mine:mine", *tiny], **options)
    assert done.stderr == ""
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"added"}
    assert {path.name for path in (tmp_path / "figures" / "added").iterdir()} == {
        "fig5b_logistic_with_mine.svg",
        "fig5b_logistic_with_mine.png",
        "results.json",
    }
    assert list(shared.read_results(tmp_path / "figures" / "added" / "results.json")) == ["5b-with-mine"]
    (tmp_path / "bad.py").write_text("PVI = 3\n\n\ndef needs(x):\n    return x\n")
    for wrong, words in (("mine:yours", "add must be module"), ("bad:needs", "no arguments"), ("bad:PVI", "a method")):
        done = subprocess.run([*command, wrong], **options)
        assert done.returncode == 1
        (line,) = done.stderr.strip().splitlines()
        assert words in line


def test_images_are_split_by_label_pairs():
    clients, text = shared.label_pairs("digits", 4, 200)
    assert text == "digits, first 200 images, 4×4 pixels"
    assert sum(len(y) for _, y in clients) == 200
    for k, (X, y) in enumerate(clients):
        assert X.shape == (len(y), 16)
        assert set(y) <= {2 * k, 2 * k + 1}


def test_rcparams_are_left_alone(small):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    fig4_outlier.DEMO.picture(small("4"))
    assert dict(mpl.rcParams) == before
