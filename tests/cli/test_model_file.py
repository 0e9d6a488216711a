"""The model file: what is written is what is read, and what is not a model is refused in one sentence."""

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._archive import Archive, ArchiveError
from bayesadmm_np.estimators.fitted import Site, model_of, predictor_mean, predictor_spread
from bayesadmm_np.estimators.model_file import load_model, save_model
from bayesadmm_np.estimators.summary import summarise
from bayesadmm_np.families import FullGaussian
from bayesadmm_np.families.gaussians import FAMILIES
from bayesadmm_np.glm.inference import FitStatistics
from bayesadmm_np.glm.kinds import read_kind
from bayesadmm_np.glm.layout import Layout
from bayesadmm_np.glm.site_statistics import SiteStatistics
from bayesadmm_np.splitting.distance import Distance

ROWS = {"full": "PVI", "diagonal": "PVI", "isotropic": "ADMM", "fixed": "PreconditionedADMM"}


def make(family="full", loss="logistic", precision=0.5):
    """A small fit, by the loop alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    outputs = 3 if loss == "softmax" else 1
    layout = Layout(2, outputs, True, np.array([0.25, -0.5]) if family == "full" else None)
    design = layout.design(X)
    targets = {
        "logistic": (rng.random(40) < 0.5).astype(int),
        "softmax": rng.integers(0, 3, 40),
        "ridge": rng.normal(size=40),
        "poisson": rng.poisson(2.0, 40),
    }
    kind = read_kind(loss)
    noise = 2.0 if kind.has_noise else 1.0
    prior = FAMILIES[family](np.zeros(3 * outputs), precision)
    method = ba.methods.TABLE[ROWS[family]]()
    rule = method.expectation or kind.rule
    clients = [
        kind.make_loss(design[k::2], targets[loss][k::2], n_outputs=outputs, noise_variance=noise) for k in (0, 1)
    ]
    result = ba.run(method, clients, prior, 3, expectation=rule, raise_on_failure=False)
    return model_of(
        kind=kind,
        target="y",
        client=None,
        names=("age", "sex"),
        layout=layout,
        classes={"logistic": (0.0, 1.0), "softmax": ("a", "b", "ü")}.get(loss, ()),
        prior=prior,
        posterior=result.posterior,
        sites={name: Site(site, 20) for name, site in zip(("north", "süd"), result.sites, strict=True)},
        rule=rule,
        noise_variance=noise,
        method=method.name,
        status=result.status,
        message="ün",
        certificate=result.certificate(),
        rounds=3,
        objective=np.array(result.objective[1:]),
        floats=12,
        log_likelihood=-1.5,
    )


def changed(model, group, **changes):
    return replace(model, **{group: replace(getattr(model, group), **changes)})


@pytest.mark.parametrize(
    ("family", "loss"), [*((family, "logistic") for family in FAMILIES), ("full", "softmax"), ("full", "ridge")]
)
def test_what_is_written_is_what_is_read(tmp_path, family, loss):
    model = make(family, loss)
    save_model(tmp_path / "m.npz", model)
    read = load_model(tmp_path / "m.npz")
    assert read.posterior.natural == model.posterior.natural
    assert read.prior.natural == model.prior.natural
    assert read.prior.prior_weight == model.prior.prior_weight
    assert np.array_equal(read.posterior.mean, model.posterior.mean)
    assert {name: (site.factor, site.n_rows) for name, site in read.sites.items()} == {
        name: (site.factor, site.n_rows) for name, site in model.sites.items()
    }
    assert np.array_equal(read.record.objective, model.record.objective)
    assert str(read.layout) == str(model.layout)
    names = "kind columns.classes criterion coefficient_names totals.log_likelihood totals.elbo"
    record = "record.certificate record.message record.version record.status"
    for name in f"{names} {record}".split():
        assert attrgetter(name)(read) == attrgetter(name)(model), name
    save_model(tmp_path / "again.npz", read)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "m.npz").read_bytes()


def test_a_mean_keeps_its_digits_where_the_precision_is_ill_conditioned(tmp_path):
    """λ = Sm keeps a mean to cond(S) roundings, here 1e-16 × 1e12; a mean that is not λ's is refused."""
    model, root = make(), np.array([[1e6, 0.0, 0.0], [1e6, 1.0, 0.0], [0.0, 1.0, 1.0]])
    q = FullGaussian(np.array([1.0, 1.0 / 3.0, -0.7]), root @ root.T)
    save_model(tmp_path / "m.npz", replace(model, posterior=q))
    assert np.array_equal(load_model(tmp_path / "m.npz").posterior.mean, q.mean)
    archive = Archive.read(tmp_path / "m.npz")
    assert not np.allclose(model.prior.with_natural(q.natural).mean, q.mean, rtol=1e-12, atol=0.0)  # a broken twin
    for wrong in (q.mean * [1.0, 1.1, 1.0], q.mean * 2.0):
        replace(archive, arrays={**archive.arrays, "mean": wrong}).write(tmp_path / "other.npz")
        with pytest.raises(ArchiveError, match="mean"):
            load_model(tmp_path / "other.npz")


def test_a_prior_that_is_a_matrix_survives(tmp_path):
    model = make(precision=np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1e-8]]))
    save_model(tmp_path / "m.npz", model)
    assert load_model(tmp_path / "m.npz").prior.natural == model.prior.natural


def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch):
    model = make()
    save_model(tmp_path / "m.npz", model)
    before = (tmp_path / "m.npz").read_bytes()

    def crash(self):
        yield b"half"
        raise OSError("the disk is full")

    monkeypatch.setattr(Archive, "_pieces", crash)
    with pytest.raises(OSError, match="full"):
        save_model(tmp_path / "m.npz", changed(model, "record", rounds=9))
    assert (tmp_path / "m.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.npz"]


def test_a_rule_that_is_not_settled_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Auto"):
        save_model(tmp_path / "m.npz", changed(make(), "criterion", rule=ba.losses.Auto()))


# ----------------------------------------------------------------------------------------------------
# Files that are not what they say; the container itself is checked in tests of archives
# ----------------------------------------------------------------------------------------------------


def edit_header(**changes):
    return lambda header, arrays: header.update(changes)


def edit_proof(**changes):
    return lambda header, arrays: header.update(certificate={**header["certificate"], **changes})


def edit_bound(**changes):
    def edit(header, arrays):
        proof = header["certificate"]
        header["certificate"] = {**proof, "distance": {**proof["distance"], **changes}}

    return edit


def edit_array(name, function):
    def edit(header, arrays):
        arrays[name] = function(np.array(arrays[name]))

    return edit


def poke(where, value):
    def function(array):
        array[where] = value
        return array

    return function


TWICE = [{"name": "north", "n_rows": 1}] * 2
TAMPERED = {
    "unknown key": (edit_header(note="hi"), "note"),
    "missing key": (lambda h, a: h.pop("rounds"), "rounds"),
    "kind": (edit_header(glm="hinge"), "'hinge'"),
    "option": (edit_header(glm="poisson(size=2)"), "'size'"),
    "family": (edit_header(family=["full"]), "family"),
    "family's name": (edit_header(family="block", centred=False), "'block'"),
    "tol": (edit_proof(tol=-1.0), "tol"),
    "noise": (edit_header(noise_variance=True), "noise_variance"),
    "no classes": (edit_header(classes=[]), "classes"),
    "classes twice": (edit_header(classes=[1.0, 1.0]), "classes"),
    "outputs": (edit_header(outputs=3), "outputs"),
    "no site's rows": (edit_header(sites=[{"name": "north", "n_rows": 0}]), "n_rows"),
    "no sites": (edit_header(sites=[]), "sites"),
    "a likelihood that is no number": (edit_header(log_likelihood=float("nan")), "log_likelihood"),
    "sites of one name": (edit_header(sites=TWICE), "sites"),
    "one site fewer": (edit_header(sites=TWICE[:1]), "arrays"),
    "features": (edit_header(features=["age", "sex", "dose"]), "distance"),
    "levels": (edit_header(levels={"dose": ["a", "b"]}), "levels"),
    "status": (edit_header(status="DONE"), "'DONE'"),
    "a distance below zero": (edit_bound(mahalanobis=-1.0), "distance"),
    "a distance that is no number": (edit_bound(mahalanobis=float("nan")), "distance"),
    "a distance of fewer coefficients": (edit_bound(per_coefficient=[0.0]), "distance"),
    "rounds": (edit_header(recorded=10**12), "objective"),
    "rule": (edit_header(rule={"type": "eval"}), "'eval'"),
    "points": (
        edit_header(rule={"type": "QuasiMonteCarlo", "points": 2**40, "seed": 0}),
        "points",
    ),
    "labels": (edit_header(classes=[None, True]), "classes"),
    "rule arguments": (edit_header(rule={"type": "Delta", "order": 7}), "order"),
    "edges": (edit_proof(edges={"broadcast": 0.0}), "edges"),
    "centred": (edit_header(centred=False), "arrays"),
    "missing array": (lambda h, a: a.pop("prior/mean"), "prior/mean"),
    "another array": (lambda h, a: a.update(extra=np.zeros(3)), "arrays"),
    "NaN": (edit_array("posterior", poke(0, np.nan)), "posterior"),
    "a mean beyond all sums": (lambda h, a: a.update(mean=np.array([1e308, 0.0, 0.0])), "mean"),
    "infinity": (edit_array("site1", poke(0, np.inf)), "site1"),
    "shape": (edit_array("posterior", lambda a: a[:2]), "posterior"),
    "type": (edit_array("prior/mean", lambda a: a.astype(np.float32)), "float32"),
    "not positive definite": (edit_array("posterior", lambda a: -a), "positive definite"),
    "prior not positive semidefinite": (edit_array("prior/precision", lambda a: -a), "positive semidefinite"),
}


STATISTICS = {
    "n_rows": ({"n_rows": 0}, {}, "n_rows"),
    "clusters": ({"n_clusters": 99}, {}, "n_clusters"),
    "weight": ({"weight": 0.0}, {}, "weight"),
    "pearson": ({"pearson": -1.0}, {}, "sums"),
    "a sum that is no number": ({"loss": float("inf")}, {}, "loss"),
    "a sum too many": ({"extra": 1.0}, {}, "extra"),
    "another matrix": ({"meats": ["HC0", "HC9"]}, {"HC9": np.eye(3)}, "meats"),
    "a matrix that is missing": ({"meats": ["HC0", "HC2"]}, {}, "meats/HC2"),
    "a matrix too many": ({}, {"HC2": np.eye(3)}, "arrays"),
    "a matrix of another shape": ({}, {"HC0": np.eye(2)}, "statistics/meats/HC0"),
    "no covariance": ({}, {"HC0": -np.eye(3)}, "positive semidefinite"),
    "not symmetric": ({}, {"HC0": np.eye(3) + np.eye(3, k=1)}, "symmetric"),
}


def with_statistics():
    total = SiteStatistics(30, 30.0, 0.0, 12.0, 20.0, 0.0, 0.0, 29.0, {"HC0": np.eye(3)})
    return changed(make(), "totals", statistics=FitStatistics(total, "none"))


def test_statistics_are_read_as_they_were_written(tmp_path):
    save_model(tmp_path / "m.npz", with_statistics())
    read, model = load_model(tmp_path / "m.npz").totals.statistics, with_statistics().totals.statistics
    assert (read.noise, read.weights) == (model.noise, model.weights)
    for name, value in vars(model.total).items():
        assert str(getattr(read.total, name)) == str(value), name


def test_a_field_beside_the_sums_is_refused(tmp_path):
    """As files had it before: else a sum that stands there would be read by nobody."""
    save_model(tmp_path / "m.npz", with_statistics())
    rewritten(tmp_path / "m.npz", tmp_path / "bad.npz", lambda header, arrays: header["statistics"].update(weight=-1.0))
    with pytest.raises(ArchiveError, match="fields"):
        load_model(tmp_path / "bad.npz")


def test_statistics_that_no_rows_have_are_refused(tmp_path):
    save_model(tmp_path / "m.npz", with_statistics())

    def edit(changes, matrices):
        def function(header, arrays):
            header["statistics"] = {**header["statistics"], "total": {**header["statistics"]["total"], **changes}}
            arrays.update({f"statistics/meats/{name}": matrix for name, matrix in matrices.items()})

        return function

    cases = {case: (edit(changes, matrices), word) for case, (changes, matrices, word) in STATISTICS.items()}
    assert taken(tmp_path, cases) == {}


def taken(folder, cases):
    """Return the cases of an edit of the file m.npz that are not refused with their word, and what happened."""
    found = {}
    for case, (edit, word) in cases.items():
        rewritten(folder / "m.npz", folder / "bad.npz", edit)
        try:
            load_model(folder / "bad.npz")
            found[case] = "read"
        except ArchiveError as error:
            if not ("bad.npz" in str(error) and word in str(error)):
                found[case] = str(error)
    return found


def rewritten(path, out, edit, kind="model"):
    archive = Archive.read(path)
    header, arrays = dict(archive.header), dict(archive.arrays)
    edit(header, arrays)
    Archive(kind, header, arrays).write(out)


def test_a_tampered_file_is_refused_by_name(tmp_path):
    save_model(tmp_path / "m.npz", make())
    assert taken(tmp_path, TAMPERED) == {}


def test_a_posterior_of_absurd_size_is_shown(tmp_path):
    """Without shares of the information, a table that is too wide has nothing to move below it."""
    save_model(tmp_path / "m.npz", make())
    rewritten(tmp_path / "m.npz", tmp_path / "huge.npz", edit_array("posterior", lambda a: 1e200 * a))
    assert "coef" in str(summarise(load_model(tmp_path / "huge.npz")))


def test_a_file_keeps_that_there_is_no_bound(tmp_path):
    """A certificate without a bound holds as little after it is read; twin: that with its bound."""
    model = make()
    lost = replace(model.record.certificate, pooled=0.0, distance=Distance.unknown(3, "no reason"))
    for proof, holds in ((lost, False), (replace(model.record.certificate, pooled=0.0), True)):
        save_model(tmp_path / "m.npz", changed(model, "record", certificate=proof))
        read = load_model(tmp_path / "m.npz").record.certificate
        assert read.is_stationary
        assert read.holds is holds
        assert ("proves nothing" in str(read)) is not holds


def test_the_tampering_itself_is_harmless(tmp_path):
    """Twin of the table: the same way of writing, without an edit, is read; as another kind of archive it is not."""
    save_model(tmp_path / "m.npz", make())
    rewritten(tmp_path / "m.npz", tmp_path / "same.npz", lambda header, arrays: None)
    assert load_model(tmp_path / "same.npz").posterior.natural == make().posterior.natural
    rewritten(tmp_path / "m.npz", tmp_path / "other.npz", lambda header, arrays: None, "checkpoint")
    with pytest.raises(ArchiveError, match="kind"):
        load_model(tmp_path / "other.npz")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"")
    (tmp_path / "b.npz").write_bytes(b"\x80\x04N.")
    with open(tmp_path / "c.npz", "wb") as file:
        np.savez(file, x=np.zeros(3))
    for name in "abc":
        with pytest.raises(ArchiveError, match=rf"{name}\.npz"):
            load_model(tmp_path / f"{name}.npz")
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "d.npz")


# ----------------------------------------------------------------------------------------------------
# Predictions against independent integrals
# ----------------------------------------------------------------------------------------------------


def test_poisson_predictions_are_the_moments_of_the_mixture():
    """Mean and sd of a Poisson whose log rate is normal, by Gauss–Hermite on the rate and its square."""
    q = ba.families.FullGaussian(np.array([0.3, 1.0]), np.array([[4.0, 1.0], [1.0, 9.0]]))
    design = np.array([[1.0, 1.0], [2.0, 1.0]])
    mean, sd = read_kind("poisson").mean_and_sd(predictor_mean(q, design, 1), predictor_spread(q, design, 1))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    spread = np.einsum("ij,jk,ik->i", design, q.covariance, design)
    rates = np.exp((design @ q.mean)[:, None] + np.sqrt(spread)[:, None] * nodes)
    # 80 nodes integrate exp(2f) at σ < 1.1 to rounding
    assert np.allclose(mean, rates @ weights, rtol=1e-12)
    second = (rates + rates**2) @ weights
    assert np.allclose(sd, np.sqrt(second - (rates @ weights) ** 2), rtol=1e-10)


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_undoing_the_units_is_the_same_model(family):
    model = make(family)
    table = {"age": np.array([3.0, -1.0]), "sex": np.array([1.0, 0.0])}
    raw = np.column_stack([table["age"], table["sex"], np.ones(2)])
    own = model.posterior, model.design(table), model.layout.n_outputs
    predictor_, variance = predictor_mean(*own), predictor_spread(*own)
    assert np.allclose(raw @ model.mean(), predictor_, rtol=1e-12)
    spread = np.einsum("ij,jk,ik->i", raw, model.covariance(), raw)
    assert np.allclose(spread, variance, rtol=1e-12)
    shares = [row.shares for row in summarise(model).rows]
    assert np.allclose(np.sum(shares, axis=1), 1.0)
    assert np.allclose(model.uncentred.mean(), model.mean(), rtol=1e-12)
