"""Every demo at small scale: its claims hold, and fail when the result is doctored."""

import hashlib
import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the demos need the extra `demos`")
pytest.importorskip("sklearn", reason="the demos need the extra `demos`")

import bayesadmm_np as ba
from bayesadmm_np.demos import fig3_circuit, fig4_outlier, fig5a_ridge, fig5b_logistic, images, style
from bayesadmm_np.demos.outlier_data import POINTS, with_bias

SMALL = {
    "3": (fig3_circuit, {}),
    "4": (fig4_outlier, {}),
    "5a": (fig5a_ridge, {"first": 120, "side": 4, "rounds": 4, "admm_rhos": (5.0, 25.0), "bregman_rhos": (0.2,)}),
    "5b": (fig5b_logistic, {"first": 300, "side": 4, "rounds": (12, 8), "points": 40}),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As `reproduce` does: small matrices on many threads are slow."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def results():
    return {}


@pytest.fixture
def small(results):
    """Compute each small figure once."""

    def get(name):
        if name not in results:
            demo, sizes = SMALL[name]
            results[name] = demo.compute(**sizes)
        return results[name]

    return get


def failing(demo, result):
    return [text for text, holds, _ in demo.claims(result) if not holds]


@pytest.mark.parametrize("name", SMALL)
def test_the_claims_hold(small, name):
    claims = SMALL[name][0].claims(small(name))
    assert claims
    assert [f"{text}: {measured}" for text, holds, measured in claims if not holds] == []


@pytest.mark.parametrize("name", SMALL)
def test_every_number_is_plain_json(small, name):
    plain = SMALL[name][0].record(small(name))
    assert json.loads(json.dumps(plain, allow_nan=False))
    assert {field.name for field in fields(small(name))} == set(plain)


@pytest.mark.parametrize("name", SMALL)
def test_drawing_twice_gives_the_same_bytes(small, name, tmp_path):
    demo = SMALL[name][0]
    digests = []
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        paths = style.save(demo.draw(small(name)), tmp_path / folder, demo.NAME)
        digests.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in paths])
        assert paths[1].stat().st_size > 10_000
    assert digests[0] == digests[1]


def test_circuit_claims_fail_on_an_open_edge(small):
    result = small("3")
    end = result.bayes.snapshots[-1]
    for edge in fig3_circuit.EDGES:
        torn = replace(end, residuals=end.residuals | {edge: 1e-3})
        doctored = replace(result, bayes=replace(result.bayes, snapshots=(*result.bayes.snapshots[:-1], torn)))
        assert any("BayesADMM: all four edges" in text for text in failing(fig3_circuit, doctored))
    unpooled = replace(result, admm=replace(result.admm, pooled_residual=1e-3))
    assert failing(fig3_circuit, unpooled) == ["ADMM: the closed circuit is the pooled solution"]


def test_circuit_residuals_are_those_of_the_equations(small):
    """ADMM's edges by hand, from the vectors that are drawn."""
    result = small("3").admm
    losses = [ba.losses.Logistic(with_bias(points), labels) for points, labels in POINTS]
    start, first = result.snapshots[0], result.snapshots[1]
    zero = np.zeros(3)
    at_start = max(np.linalg.norm(loss.gradient(zero)) for loss in losses) / math.sqrt(3)
    assert start.residuals["natural_gradient"] == pytest.approx(at_start, rel=1e-12)
    assert start.residuals["broadcast"] == start.residuals["gather"] == 0
    np.testing.assert_allclose(first.dual1[0], -losses[0].gradient(first.client1[0]), rtol=0, atol=1e-9)
    prior = ba.families.IsotropicGaussian(zero, 0.2)
    duals = [site.linear for site in ba.run(ba.methods.ADMM(1.0), losses, prior, rounds=1).sites]
    np.testing.assert_allclose(first.dual_server[0], 0.2 * np.array(first.server[0]), rtol=1e-14)
    gather = np.linalg.norm(first.dual_server[0] - sum(duals)) / math.sqrt(3)
    assert first.residuals["gather"] == pytest.approx(gather, rel=1e-9)


def test_outlier_claims_fail_when_the_counts_are_swapped(small):
    result = small("4")
    other = {"ADMM": "BayesADMM", "BayesADMM": "ADMM"}
    counts = {(run.method, run.rho): run.rounds for run in result.runs}
    swapped = replace(
        result, runs=tuple(replace(run, rounds=counts[other[run.method], run.rho]) for run in result.runs)
    )
    assert len(failing(fig4_outlier, swapped)) == 2


def test_outlier_claim_fails_on_an_unfounded_report_of_no_minimum(small):
    result = small("4")
    runs = tuple(replace(run, least_curvature=0.5) if run.status == "ILL_POSED_CLIENT" else run for run in result.runs)
    assert len(failing(fig4_outlier, replace(result, runs=runs))) == 1


def test_outlier_rounds_are_counted_to_the_stated_criterion(small):
    for run in small("4").runs:
        if run.rounds is None:
            continue
        inside = [
            abs(a) <= fig4_outlier.DEGREES and abs(o) <= fig4_outlier.OFFSET
            for a, o in zip(run.angle, run.offset, strict=True)
        ]
        assert all(inside[run.rounds - 1 :])
        assert run.rounds == 1 or not inside[run.rounds - 2]


@pytest.mark.parametrize("round_", [1, 2])
def test_ridge_claims_fail_when_one_round_is_not_enough(small, round_):
    result = small("5a")
    bayes = result.curve("BayesADMM")
    error = tuple(1e-6 if i == round_ else value for i, value in enumerate(bayes.error))
    doctored = replace(result, curves=(*result.curves[:-1], replace(bayes, error=error)))
    assert failing(fig5a_ridge, doctored)


def test_ridge_claims_fail_when_admm_is_as_good(small):
    result = small("5a")
    admm, *rest = result.curves
    assert admm.method == "ADMM"
    doctored = replace(result, curves=(replace(admm, error=result.curve("BayesADMM").error), *rest))
    assert failing(fig5a_ridge, doctored)


def test_logistic_claims_fail_when_methods_are_swapped(small):
    result = small("5b")
    panel = result.diagonal
    pvi, fast = panel.curve(fig5b_logistic.PVI), panel.curve(fig5b_logistic.FAST)
    exchange = {pvi.label: replace(fast, label=pvi.label), fast.label: replace(pvi, label=fast.label)}
    curves = tuple(exchange.get(curve.label, curve) for curve in panel.curves)
    doctored = replace(result, diagonal=replace(panel, curves=curves))
    assert len(failing(fig5b_logistic, doctored)) >= 2


def test_logistic_claims_fail_when_full_pvi_diverges(small):
    result = small("5b")
    diverged = tuple(
        replace(curve, gap=(1.0, *([5.0] * 8))) if curve.label == fig5b_logistic.PVI else curve
        for curve in result.full.curves
    )
    assert failing(fig5b_logistic, replace(result, full=replace(result.full, curves=diverged)))


def test_only_curves_that_say_so_are_safeguarded(small):
    for panel in (small("5b").diagonal, small("5b").full):
        for curve in panel.curves:
            assert curve.safeguard == ("safeguard" in curve.label)


def test_a_method_looks_the_same_in_every_figure():
    looks = list(style.LOOKS.values())
    assert len({(look.colour, look.marker, str(look.line)) for look in looks}) == len(looks)
    assert style.look("BayesADMM") is style.LOOKS["BayesADMM"]


def test_unknown_images_are_refused_by_name():
    with pytest.raises(ValueError, match=r"dataset must be one of digits, mnist, got 'cifar'"):
        images.load("cifar", 8, 10)


def test_images_are_split_by_label_pairs():
    pictures = images.load("digits", 4, 200)
    assert pictures.X.shape == (200, 16)
    for client, part in enumerate(pictures.parts):
        assert set(pictures.y[part]) <= {2 * client, 2 * client + 1}


def test_mnist_at_its_sizes(monkeypatch, tmp_path):
    """A file in MNIST's layout: the demo reads 7 × 7 images from the directory that the user names."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (80, 28, 28), dtype=np.uint8)
    y = np.arange(80) % 10
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    monkeypatch.setenv("BAYESADMM_DATA", str(tmp_path))
    result = fig5a_ridge.compute("mnist", first=60, rounds=2, admm_rhos=(25.0,), bregman_rhos=(0.2,))
    assert result.parameters == 490
    assert result.curve("BayesADMM").error[1] < 1e-12


def test_a_failed_run_is_marked(small):
    """✗ where a run ended, in the figure and in the notes."""
    result = small("5b")
    message = "client 0, round 3: made up"
    ended = replace(result.full.curves[0], status="ILL_POSED_CLIENT", message=message)
    doctored = replace(result, full=replace(result.full, curves=(ended, *result.full.curves[1:])))
    marks = [
        sum(line.get_marker() == "x" and len(line.get_xdata()) > 0 for line in fig5b_logistic.draw(r).axes[1].lines)
        for r in (result, doctored)
    ]
    assert marks[1] == marks[0] + (not ba.Status[result.full.curves[0].status].is_failure)
    assert any(message in note for note in fig5b_logistic.notes(doctored))


def test_rcparams_are_left_alone(small):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    fig4_outlier.draw(small("4"))
    assert dict(mpl.rcParams) == before
