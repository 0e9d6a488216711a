"""The one file without the library, demos/duality_in_numpy.py, against the library in every round; broken twins."""

import ast
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bayesadmm_np as ba

FILE = Path(__file__).resolve().parents[2] / "demos" / "duality_in_numpy.py"
SOURCE = FILE.read_text(encoding="utf-8")

# Both client solvers stop at residuals of 1e-13, and a round multiplies errors by less than 100 (ρ >= ½, curvatures
# of 2 to 10): 1e-11 a round, which contracting rounds do not pile up. Each twin is off by more than 1e-2 in round 2.
TOL = 1e-8

ROWS = {  # the library's method and family
    "ADMM, ρ = 3": (ba.methods.ADMM(3.0), ba.families.IsotropicGaussian),
    "BayesADMM, full, ρ = ½": (ba.methods.BayesADMM(0.5), ba.families.FullGaussian),
    "BayesADMM, diagonal, ρ = 1": (ba.methods.BayesADMM(1.0), ba.families.DiagonalGaussian),
    "PVI, full": (ba.methods.PVI(), ba.families.FullGaussian),
}


def load(old="", new=""):
    """Execute the file, with `new` in place of `old`."""
    assert not old or SOURCE.count(old) == 1, f"{old!r} is there {SOURCE.count(old)} times"
    module = types.ModuleType("one_file")
    exec(compile(SOURCE.replace(old, new) if old else SOURCE, FILE.name, "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def file():
    return load()


# Against the library -------------------------------------------------------------------------


def problem(file, name):
    clients = [ba.losses.Logistic(X, y) for X, y in zip(file.X, file.y, strict=True)]
    return clients, ROWS[name][1](np.zeros(file.d), 1.0)


def as_array(parameter):
    """Put a natural parameter of the library into the file's form: a column beside a matrix."""
    precision = getattr(parameter, "precision", np.zeros((2, 2)))
    return np.column_stack([parameter.linear, np.diag(precision) if precision.ndim == 1 else precision])


def library_rounds(file, name, rounds, folder):
    """Yield the library's result after each round; each run resumes from the last one."""
    options = {"tol": 1e-300, "solver": ba.clients.VariationalNewton(tol=1e-13), "checkpoint": folder / "run"}
    for t in range(1, rounds + 1):
        result = ba.run(ROWS[name][0], *problem(file, name), rounds=t, **options)
        assert result.rounds == t
        options["resume"] = options["checkpoint"]
        yield result


def compare(file, name, folder, rounds=200):
    """Compare the server, the clients and the duals of every round; returns both last rounds."""
    family, rho, alpha = file.METHODS[name]
    history = file.run(family, rho, alpha, rounds=rounds)
    library = library_rounds(file, name, len(history), folder)
    for (server, clients, duals, _), result in zip(history, library, strict=True):
        ours = [family * server, *(family * q for q in clients), *duals]  # N(m, I) keeps S = I, no parameter of it
        theirs = [result.posterior.natural, *(q.natural for q in result.client_posteriors), *result.sites]
        assert_allclose(ours, [as_array(parameter) for parameter in theirs], rtol=0, atol=TOL)
    return history[-1], result


@pytest.mark.parametrize("name", ROWS)
def test_every_round_and_the_answer_are_those_of_the_library(file, name, tmp_path):
    (server, *_, edges), result = compare(file, name, tmp_path)
    mean, covariance = file.moments(server)
    assert_allclose(mean, result.posterior.mean, rtol=0, atol=TOL)
    assert_allclose(np.diag(covariance), result.posterior.variance, rtol=0, atol=TOL)
    assert max(edges) < TOL
    family = file.METHODS[name][0]
    pooled = ba.solve_pooled(*problem(file, name), expectation=ROWS[name][0].expectation, tol=1e-12).posterior
    assert_allclose(family * file.pooled(family), as_array(pooled.natural), rtol=0, atol=TOL)


TWINS = {
    "flipped sign of the dual": ("η[k] + ρ * (λ[k] - λ_g)", "η[k] - ρ * (λ[k] - λ_g)"),
    "no mean beside α": ("sum(λ) / K", "sum(λ)"),
    "½ of the paper's coordinates": ("moments(λ)[0], -H])", "moments(λ)[0], -0.5 * H])"),
}


# PVI has no mean, and ADMM no precision that could lack its ½
BROKEN = [(name, twin) for name in list(ROWS)[:3] for twin in TWINS if not (name == "ADMM, ρ = 3" and "½" in twin)]


@pytest.mark.parametrize(("name", "twin"), BROKEN)
def test_a_broken_file_is_not_the_library(name, twin, tmp_path):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(load(*TWINS[twin]), name, tmp_path, rounds=2)


# What its comments claim ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_duals_are_negative_natural_gradients_in_every_round(file, name):
    """A client stops at a residual of 1e-13, or where rounding of sums of 20 numbers ends it."""
    assert max(edges[1] for *_, edges in file.run(*file.METHODS[name])) < 1e-11
    twin = load(*TWINS["flipped sign of the dual"])
    assert twin.run(*twin.METHODS[name], rounds=1)[0][3][1] > 1.0


@pytest.mark.parametrize("family", ["FULL", "DIAGONAL", "ISOTROPIC"])
def test_the_natural_gradient_is_the_gradient_over_fisher_information(file, family):
    """Eq. 11, along every direction within the family."""

    def difference(file):
        mask = getattr(file, family)
        lam = file.run(mask, 1.0, rounds=1)[0][1][0]
        ordinary = file.along_λ(lambda lam: file.expected_loss(lam, file.X[0], file.y[0], mask), lam)
        fisher = file.along_λ(file.expectation, lam).reshape(lam.size, -1)
        assert abs(fisher - fisher.T).max() < 1e-13  # the covariance of T: symmetric
        natural = file.natural_gradient(lam, file.X[0], file.y[0], mask).ravel()
        return abs(mask.ravel() * (ordinary - fisher @ natural)).max()

    assert difference(file) < 1e-12
    if family != "ISOTROPIC":
        assert difference(load(*TWINS["½ of the paper's coordinates"])) > 1e-2


def test_the_dual_map_needs_the_half(file):
    lam = file.run(file.FULL, 1.0, rounds=1)[0][0]
    twin = load("-0.5 * (np.outer", "-1.0 * (np.outer")
    for module, closed in ((file, True), (twin, False)):
        gap = abs(module.expectation(lam).ravel() - module.along_λ(module.A, lam)).max()
        assert gap < 1e-12 if closed else gap > 1e-2


def test_the_server_s_step_solves_eq_53(file):
    """Eq. 53, the gradient of Eq. 17; with the precision of N(m, I) as well, since the prior lies in the family."""
    for family, rho, alpha in list(file.METHODS.values())[:3]:
        for server, clients, duals, _ in file.run(family, rho, alpha, rounds=3):
            gradient = server - file.η_0 - sum(duals) + rho * sum(server - own for own in clients)
            assert abs(gradient).max() < 1e-12


def test_the_rho_of_each_method_is_the_quickest_of_four(file):
    """ADMM 46 rounds, the second best 51; a full covariance 14 and 52, a diagonal one 88 and 197."""
    for name in list(ROWS)[:3]:
        family, rho, _ = file.METHODS[name]
        with np.errstate(invalid="ignore"):  # at ρ = ½ a diagonal covariance leaves the domain
            runs = {each: file.run(family, each) for each in (0.5, 1.0, 2.0, 3.0)}
        rounds = {each: len(history) for each, history in runs.items() if max(history[-1][3]) < 1e-8}
        assert min(rounds, key=rounds.get) == rho


def test_equal_steps_integrate_where_gauss_hermite_does_not(file):
    """Logits of standard deviation up to 4, against the library's moments; rows have less even under the prior."""
    assert max(np.linalg.norm(X, axis=1).max() for X in file.X) < 4.0
    mean = np.linspace(-6, 6, 25)
    nodes, gauss = np.polynomial.hermite_e.hermegauss(32)

    def error(sd, z, weights):
        p = 1 / (1 + np.exp(-(mean[:, None] + sd * z)))
        exact = ba.losses.logistic_normal_moments(mean, np.full_like(mean, sd**2))
        return max(abs(p @ weights - exact.sigmoid).max(), abs((p * (1 - p)) @ weights - exact.slope).max())

    assert max(error(sd, file.z, file.weights) for sd in (0.5, 1.0, 2.0, 3.0, 4.0)) < 1e-13
    assert error(2.0, nodes, gauss / gauss.sum()) > 1e-8


# As a file -----------------------------------------------------------------------------------


def faults(source):
    """Name what keeps a file from being read on a train: its length, its imports."""
    lines = source.splitlines()
    if len(lines) > 150 or max(map(len, lines)) > 120:
        yield "length"
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        yield from (f"imports {name}" for name in names if name != "numpy")


def test_it_has_150_lines_and_imports_numpy_alone():
    assert list(faults(SOURCE)) == []
    assert list(faults("\n" * 150 + SOURCE)) == ["length"]
    assert list(faults("import bayesadmm_np as ba\nfrom scipy import stats")) == [
        "imports bayesadmm_np",
        "imports scipy",
    ]


def test_it_names_every_equation():
    cited = set()
    for numbers in re.findall(r"Eq\. (\d+(?:(?:, | and )\d+)*)", SOURCE):
        cited |= set(map(int, re.findall(r"\d+", numbers)))
    assert {*range(5, 18), 54} <= cited


def test_as_a_script_it_prints_each_dual_beside_the_natural_gradient(tmp_path):
    """Twelve lines whose two vectors are equal to the three decimals that are printed, and four answers."""
    command = [sys.executable, "-X", "utf8", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    vectors = [[np.fromstring(part, sep=" ") for part in re.findall(r"\[(.*?)\]", line)] for line in lines]
    for line, (dual, gradient) in zip(lines[1:13], vectors[1:13], strict=True):
        assert line.startswith(tuple(ROWS))
        assert_allclose(dual, gradient, rtol=0, atol=1.1e-3)
    assert [line[:26].strip() for line in lines[-4:]] == list(ROWS)
