"""The symbolic layer against the numeric families, itself, and deliberately wrong variants."""

import subprocess
import sys

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad

import bayesadmm_np as ba
from bayesadmm_np.families import Natural
from bayesadmm_np.theory import SymbolicFamily, builtin, derive_text, updates
from bayesadmm_np.theory.algebra import indexed, is_zero, tidy
from bayesadmm_np.theory.derive import derive_family
from oracles.propositions import (
    ETA_0,
    LAM_G,
    PROPOSITIONS,
    RHO,
    K,
    client_optimality,
    one_round,
    one_round_converse,
)


def spd(rng, d):
    root = rng.standard_normal((d, d))
    return root @ root.T + 0.5 * np.eye(d)


def pairs():
    """Symbolic family, and how to draw a member of the numeric one."""
    S = np.array([[1.5, 0.4], [0.4, 0.75]])
    families = ba.families
    return {
        "unit": (builtin.gaussian("unit", 2), lambda r: families.IsotropicGaussian(r.standard_normal(2))),
        "fixed": (builtin.gaussian("fixed", 2), lambda r: families.FixedPrecisionGaussian(r.standard_normal(2), S)),
        "univariate": (
            builtin.in_code(builtin.gaussian("diagonal")),
            lambda r: families.DiagonalGaussian(r.standard_normal(1), r.uniform(0.3, 3.0, 1)),
        ),
        "diagonal": (
            builtin.in_code(builtin.gaussian("diagonal", 2)),
            lambda r: families.DiagonalGaussian(r.standard_normal(2), r.uniform(0.3, 3.0, 2)),
        ),
        "full": (
            builtin.in_code(builtin.gaussian("full", 2)),
            lambda r: families.FullGaussian(r.standard_normal(2), spd(r, 2)),
        ),
        "gamma": (builtin.gamma(), lambda r: families.Gamma(*(10 ** r.uniform(-0.5, 1.0, (2, 1))))),
        "beta": (builtin.beta(), lambda r: families.Beta(*(10 ** r.uniform(-0.5, 1.0, (2, 1))))),
        "dirichlet": (builtin.dirichlet(), lambda r: families.Dirichlet(10 ** r.uniform(-0.5, 1.0, 3))),
    }


PAIRS = pairs()
every_pair = pytest.mark.parametrize("name", PAIRS)
CONSTANTS = {"fixed": (1.5, 0.4, 0.75)}
"""S_11, S_12 and S_22 of the matrix above."""
SLOW = ("gaussian-full", "dirichlet")
families_in_turn = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in builtin.FAMILIES]
)
"""Of a full Gaussian in two dimensions and of a Dirichlet in three, simplification takes more than three seconds."""
TOLERANCE = 1e-12
"""Relative to 1 + |value|; the worst of 400 members of each family is 7e-14 (full), 6e-15 elsewhere."""


def numeric_fisher(q):
    columns = [q.whiten(q.natural.from_vector(e)) for e in np.eye(q.natural.size)]
    return np.stack(columns, axis=1).T @ np.stack(columns, axis=1)


def gap(a, b):
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return np.max(np.abs(a - b) / (1.0 + np.abs(b)))


def number(expressions, family, values):
    """Evaluate expressions in λ and in a family's constants."""
    constants = CONSTANTS["fixed"] if family.constants else ()
    compiled = sp.lambdify((*family.natural, *family.constants), expressions, modules=["scipy", "numpy"])
    return np.array(compiled(*values, *constants), dtype=float)


def discrepancies(name, q, other):
    """Return how far the derived maps are from the numeric family: μ, A, A*, KL, Fisher, ∇A*."""
    family = PAIRS[name][0]
    lam, lam_other = q.natural.to_vector(), other.natural.to_vector()
    mu, A = number(family.expectation, family, lam), family.log_partition
    # ⟨λ, T⟩ counts the off-diagonal entry of a symmetric matrix twice
    packed = mu / [1, 1, 1, 2, 1] if name == "full" else mu
    kl = number(A, family, lam_other) - number(A, family, lam) - (lam_other - lam) @ mu
    found = {
        "mean": gap(packed, q.expectation.to_vector()),
        "A": gap(number(A, family, lam), q.log_partition),
        "conjugate": gap(number(family.conjugate, family, lam), q.conjugate),
        "kl": gap(kl, q.kl(other)),
        "fisher": gap(number(family.fisher, family, lam), numeric_fisher(q)),
    }
    if family.inverse is not None:
        back = dict(zip(family.moments, family.expectation, strict=True))
        found["inverse"] = gap(number([x.subs(back, simultaneous=True) for x in family.inverse], family, lam), lam)
    return found


@every_pair
def test_derived_maps_are_those_of_the_numeric_family(name):
    rng = np.random.default_rng(1)
    for _ in range(5):
        q, other = PAIRS[name][1](rng), PAIRS[name][1](rng)
        worst = discrepancies(name, q, other)
        assert max(worst.values()) < TOLERANCE, worst


@every_pair
def test_the_kl_in_the_other_order_would_be_seen(name):
    rng = np.random.default_rng(2)
    q, other = PAIRS[name][1](rng), PAIRS[name][1](rng)
    if name in ("unit", "fixed"):
        assert np.isclose(q.kl(other), other.kl(q))
    else:
        lam, lam_other = q.natural.to_vector(), other.natural.to_vector()
        symbolic, values = PAIRS[name][0], dict(zip(PAIRS[name][0].natural, lam, strict=True))
        assert np.isclose(float(symbolic.kl(tuple(map(sp.Float, lam_other))).subs(values)), q.kl(other))
        assert not np.isclose(q.kl(other), other.kl(q), rtol=1e-3)


@families_in_turn
def test_geometry_is_consistent(name):
    q = builtin.by_name(name)
    other = q.naturals("g")
    for entry, lam, lam_g in zip(q.natural_gradient(q.kl(other)), q.natural, other, strict=True):
        assert is_zero(entry - (lam - lam_g))  # ∇_μ KL(q‖q_g), the fact behind Eq. 32
    if q.inverse is None:
        assert name in ("gamma", "beta", "dirichlet")
        assert q.conjugate_of_moments is None
    else:
        back = dict(zip(q.moments, q.expectation, strict=True))
        assert is_zero(tidy(q.conjugate_of_moments.subs(back, simultaneous=True) - q.conjugate))


def test_the_natural_gradient_of_the_other_kl_is_not_a_difference_of_naturals():
    q = builtin.gaussian("diagonal")
    other = q.naturals("g")
    swap = dict(zip((*q.natural, *other), (*other, *q.natural), strict=True))
    wrong = q.natural_gradient(q.kl(other).subs(swap, simultaneous=True))
    assert not is_zero(wrong[0] - (q.natural[0] - other[0]))


def total_mass(family):
    """Σ or ∫ of h(θ) exp(⟨λ, T⟩ − A) at λ = −0.4, which is 1 when A fits T, h and the support."""
    lam = dict.fromkeys(family.natural, -0.4)
    exponent = sum(a * b for a, b in zip(family.natural, family.statistic, strict=True)) - family.log_partition
    density = sp.lambdify(family.theta[0], sp.exp(family.log_base_measure + exponent).subs(lam), ["scipy", "numpy"])
    if family.support.is_subset(sp.S.Integers):
        return sum(density(float(x)) for x in range(2 if family.support.is_FiniteSet else 60))
    return quad(density, float(family.support.inf), float(family.support.sup))[0]


def test_log_partitions_fit_their_statistics():
    made = [make() for make in builtin.FAMILIES.values()]
    masses = {q.name: total_mass(q) for q in made if len(q.theta) == 1 and not q.constants}
    assert len(masses) == 7
    assert masses == pytest.approx(dict.fromkeys(masses, 1.0), abs=1e-7)
    x, lam = sp.symbols("x lambda", real=True)
    wrong = SymbolicFamily("wrong", [x], [lam], [x], 2 * sp.exp(lam), -sp.loggamma(x + 1), support=sp.S.Naturals0)
    assert abs(total_mass(wrong) - 1.0) > 0.1


TABLE_3 = {
    "unit": ["m_1", "m_2"],
    "fixed": ["S_11*m_1 + S_12*m_2", "S_12*m_1 + S_22*m_2"],
    "diagonal": ["s_1*m_1", "s_2*m_2", "-s_1/2", "-s_2/2"],
    "full": ["S_11*m_1 + S_12*m_2", "S_12*m_1 + S_22*m_2", "-S_11/2", "-S_12/2", "-S_22/2"],
}
"""λ = m, Sm, (sm, −½s) and (Sm, −½S)."""


@pytest.mark.parametrize("structure", TABLE_3)
def test_natural_parameters_are_those_of_table_3(structure):
    q = builtin.gaussian(structure, 2)
    symbols = {p.name: p for p in (*q.parameters, *q.constants)}
    printed = [sp.sympify(entry, locals=symbols) for entry in TABLE_3[structure]]
    assert all(is_zero(a - b) for a, b in zip(q.natural_of_parameters, printed, strict=True))
    if len(printed) > 2:
        code = builtin.in_code(q)
        assert not is_zero(code.natural_of_parameters[2] - printed[2])  # T = −½θθᵀ has another λ


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_the_statistic_can_be_rescaled_and_back(structure):
    paper = builtin.gaussian(structure, 2)
    code = builtin.in_code(paper)
    again = code.with_statistic([1, 1] + [-2] * (len(code.natural) - 2))
    assert again.statistic == paper.statistic
    assert again.natural_of_parameters == paper.natural_of_parameters
    assert code.natural_of_parameters != paper.natural_of_parameters
    point = dict(zip(paper.natural, [0.3, -0.2, -1.0, *([0.4, -0.7] if structure == "full" else [-0.7])], strict=True))
    named = {s.name: value for s, value in point.items()}
    there = {s: named[s.name] for s in again.natural}
    assert np.isclose(float(again.log_partition.subs(there)), float(paper.log_partition.subs(point)), rtol=1e-13)


# ---- updates -------------------------------------------------------------------------------------------------------


def test_gaussian_updates_are_algorithm_1():
    made = updates(builtin.gaussian("diagonal"))
    s = {x.name: x for e in (*made.server, *made.dual, *made.site) for x in (e.lhs.free_symbols | e.rhs.free_symbols)}
    mean, add = sp.Function("Mean"), sp.Function("Sum")
    rho, alpha = s["rho"], s["alpha"]
    server = {e.lhs.name: e.rhs for e in made.server}
    s_g = (1 - alpha) * mean(s["s_k"]) + alpha * (s["s_0"] + add(s["u_k"]))
    m_g = ((1 - alpha) * mean(s["m_k"] * s["s_k"]) + alpha * (s["m_0"] * s["s_0"] + add(s["v_k"]))) / s["s_g"]
    assert is_zero(sp.expand(server["s_g"] - s_g))
    assert is_zero(sp.expand(server["m_g"] - m_g))
    dual = {e.lhs.name: e.rhs for e in made.dual}
    assert is_zero(dual["v_k"] - s["v_k"] - rho * (s["s_k"] * s["m_k"] - s["s_g"] * s["m_g"]))
    assert is_zero(dual["u_k"] - s["u_k"] - rho * (s["s_k"] - s["s_g"]))
    assert not is_zero(dual["u_k"] - s["u_k"] - rho * (s["s_k"] - s["s_g"]) / 2)  # a ½ kept by mistake
    assert made.site[1].rhs == -s["u_k"] / 2  # η = (v, −½u)


@families_in_turn
def test_updates_agree_with_a_round_in_natural_parameters(name):
    """Numbers put into the printed server step give the parameters of Eq. 54's λ_g."""
    q = builtin.by_name(name)
    made = updates(q)
    rng = np.random.default_rng(3)
    alpha, n_clients = 0.3, 3
    bases = {"p": (0.2, 0.6)}
    low, high = bases.get(next(iter(q.parameters)).name, (1.0, 2.0))
    own = lambda: {p: 0.1 if p.name == "S_12" else rng.uniform(low, high) for p in q.parameters}  # noqa: E731
    members, prior = [own() for _ in range(n_clients)], own()
    constants = dict.fromkeys(q.constants, 1.7)
    natural = lambda values: [float(x.subs(values | constants)) for x in q.natural_of_parameters]  # noqa: E731
    sites = [{e.rhs.free_symbols.pop(): rng.uniform(0.0, 0.01) for e in made.site} for _ in range(n_clients)]
    eta = [[float(e.rhs.subs(site)) for e in made.site] for site in sites]
    lam = np.array([natural(m) for m in members])
    gathered = (1 - alpha) * lam.mean(0) + alpha * (np.array(natural(prior)) + np.array(eta).sum(0))
    expected = {
        p.name: float(e.subs(dict(zip(q.natural, gathered, strict=True)) | constants))
        for p, e in q.parameters_of_natural.items()
    }

    def evaluate(expression):
        named = lambda values, index: {indexed(p, index).name: v for p, v in values.items()}  # noqa: E731
        each = [named(m, "k") | {s.name: v for s, v in site.items()} for m, site in zip(members, sites, strict=True)]
        put = lambda e, names: float(e.subs({x: names[x.name] for x in e.free_symbols}))  # noqa: E731
        done = expression.replace(sp.Function("Mean"), lambda e: sp.Float(np.mean([put(e, names) for names in each])))
        done = done.replace(sp.Function("Sum"), lambda e: sp.Float(np.sum([put(e, names) for names in each])))
        known = named(prior, "0") | {"alpha": alpha} | {c.name: v for c, v in constants.items()}
        known |= named({p: expected[p.name] for p in q.parameters}, "g")
        return put(done, known)

    for equation, value in zip(made.server, expected.values(), strict=True):
        assert np.isclose(evaluate(equation.rhs), value, rtol=1e-12)


def test_a_family_whose_a_is_not_a_log_partition_is_still_legendre():
    """Eq. 32 needs only that ∇²A is invertible: it is a fact about Bregman divergences."""
    x, lam = sp.symbols("x lambda", real=True)
    assert (
        updates(SymbolicFamily("quartic", [x], [lam], [x], lam**4))
        .optimality[0]
        .lhs.has(sp.Symbol("rho", positive=True))
    )


# ---- propositions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proposition", PROPOSITIONS, ids=lambda p: p.label)
def test_propositions(proposition):
    identity = proposition.identity()
    assert identity.difference == (0,) * len(identity.left)
    assert identity.witness() is None
    assert proposition.statement
    assert proposition.twins
    for name, make in proposition.twins.items():
        wrong = make()
        assert not wrong.holds, name
        assert wrong.witness() is not None, name


def test_one_round_needs_rho_1_over_k_and_the_prior():
    factor, rest = one_round_converse()
    assert sp.solve(factor, RHO) == [1 / K]
    assert sp.solve(rest, LAM_G) == [ETA_0]
    assert one_round().holds
    assert not one_round(start=ETA_0 + 1).holds


@pytest.mark.parametrize(("rho", "rounds"), [(1 / 3, 1), (0.7, 1), (0.7, 4), (2.0, 3)])
def test_the_proved_error_is_that_of_a_run(rho, rounds):
    c = [np.array([0.4]), np.array([-0.9]), np.array([1.1])]
    prior = ba.families.FixedPrecisionGaussian([0.3], 2.0)
    clients = [ba.losses.LinearInStatistics(Natural(x)) for x in c]
    result = ba.run(ba.methods.BayesADMM(rho=rho), clients, prior, rounds=rounds, tol=1e-300)
    alpha = 1 / (1 + 3 * rho)
    predicted = (1 - alpha) ** (rounds - 1) * (2 * alpha - 1) * sum(c)
    error = result.posterior.natural.linear - prior.natural.linear - sum(c)
    np.testing.assert_allclose(error, predicted, atol=1e-14)


# ---- printing, helpers, isolation ------------------------------------------------------------------------------------


@families_in_turn
def test_every_family_can_be_printed(name):
    text = derive_text(name)
    assert all(word in text for word in ("A(λ)", "Eq. 32", "Eq. 16", "Eq. 33", "Eq. 54", "KL(q_k‖q_g)"))
    assert ("in the coordinates of bayesadmm_np.families" in text) == (name in ("gaussian", "gaussian-full"))


def test_latex_is_balanced():
    text = derive_family(builtin.gamma(), latex=True)
    assert text.count("{") == text.count("}")
    assert text.count(r"\begin{align*}") == text.count(r"\end{align*}") == 3
    assert text.count("$") % 2 == 0
    assert not any(letter in text for letter in "λμηραθ∇∂‖")


def test_unknown_and_badly_given_families_are_named():
    x, lam, z = sp.symbols("x lambda z")
    with pytest.raises(ValueError, match="family"):
        derive_text("cauchy")
    for statistic, potential, words in (([x], lam * z, "z"), ([x * lam], lam, "lambda"), ([x, x**2], lam, "statistic")):
        with pytest.raises(ValueError, match=words):
            SymbolicFamily("bad", [x], [lam], statistic, potential)


def test_the_numeric_core_does_not_import_sympy():
    code = "import sys, bayesadmm_np; assert 'sympy' not in sys.modules and 'bayesadmm_np.theory' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_both_sides_of_eq_32_hold_rho():
    """An identity that is posed and claimed without ρ would hold as well: both sides say F(λ − λ_g) of it."""
    identity = client_optimality()
    for left, right in zip(identity.left, identity.right, strict=True):
        assert sp.diff(left, RHO) != 0
        assert sp.diff(right, RHO) != 0
        assert sp.diff(right, RHO, 2) == 0
