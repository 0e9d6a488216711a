"""The table of propositions: `python docs/propositions.py` writes `docs/propositions.md` from the rows below.

A row names a statement of a paper or of this library, the tests that check it, its lesson, and its code. Tests and code
are named by symbols, which keep their place when lines move. `resolve` finds file and line of a symbol; the site prints
the line, and a symbol that is not there is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ROWS", "Row", "faults", "markdown", "resolve"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "propositions.md"


@dataclass(frozen=True)
class Row:
    """A statement and the places where it is checked, taught and computed.

    Attributes
    ----------
    where : str
        Number in the paper, or the page of docs/ that proves the statement.
    statement : str
        Markdown; formulas between dollars.
    tests : str
        Words such as ``properties/test_circuit.py::test_name``, relative to tests/; a case of a test in brackets.
    lessons : tuple of int
    code : str
        Words such as ``splitting/server.py:Server.gather``, relative to the package.
    """

    where: str
    statement: str
    tests: str
    lessons: tuple[int, ...]
    code: str

    @property
    def test_names(self) -> list[str]:
        """Return the node ids of the tests, relative to the root."""
        return [f"tests/{name.replace('~', ' ')}" for name in self.tests.split()]


PROOF = "theory/test_theory.py::test_propositions"
CIRCUIT, CASES = "properties/test_circuit.py::", "properties/test_special_cases.py::"
RATES, GUARD, DISTANCE = "splitting/test_rates.py::", "splitting/test_guarantee.py::", "splitting/test_distance.py::"
METHODS, ERRATA = "splitting/methods.py:", "theory/test_errata.py::"

DUALITY = "Federated ADMM from Bayesian Duality"
FEDLAP = "Connecting Federated ADMM to Bayes"
FEDIVON = "FedIvon (federated learning with IVON, uncertainty and personal models)"
OWN = "Proved in these pages"

# A space in the brackets of a test is written ~.
ROWS: dict[str, list[Row]] = {
    DUALITY: [
        Row(
            "Eq. 5–7, 2–4",
            r"ADMM is BayesADMM for $\mathcal{N}(m, I)$ with averages at the mean",
            f"{CASES}test_isotropic_with_delta_is_admm",
            (1, 5),
            f"{METHODS}ADMM",
        ),
        Row(
            "Eq. 8, 33",
            r"After every client step $\eta_k = -\nabla_\mu L_k(\mu_k)$; for ADMM $v_k = -\nabla\ell_k(\theta_k)$",
            f"{CIRCUIT}test_duals_are_natural_gradients_from_any_state {PROOF}[Eq.~33] "
            f"{ERRATA}test_the_dual_is_minus_the_natural_gradient",
            (1, 4),
            "splitting/worker.py:Worker.gap",
        ),
        Row(
            "Eq. 9",
            r"The pooled fit minimises $\sum_k \mathbb{E}_q[\ell_k] + \mathrm{KL}(q\Vert\pi_0)$",
            "splitting/test_methods.py::test_solve_pooled_is_the_minimum_that_bfgs_finds",
            (3,),
            "splitting/pooled.py:solve_pooled",
        ),
        Row(
            "Eq. 10, 47, Table 3",
            r"Families: $\lambda$, $T(\theta)$, $A(\lambda)$ and $\mu = \nabla A(\lambda)$",
            "families/test_families.py::test_members_of_all_sizes_and_conditions_pass_the_checks "
            "theory/test_theory.py::test_natural_parameters_are_those_of_table_3",
            (2,),
            "families/base.py:ExponentialFamily",
        ),
        Row(
            "Eq. 11",
            r"$\nabla_\mu L = F(\lambda)^{-1}\nabla_\lambda L$",
            "demos/test_duality_in_numpy.py::test_the_natural_gradient_is_the_gradient_over_fisher_information",
            (3,),
            "theory/family.py:SymbolicFamily.natural_gradient",
        ),
        Row(
            "Eq. 12, 14",
            r"At the optimum $\lambda_g = \eta_0 - \sum_k \nabla_\mu L_k(\mu_g)$: the posterior is prior times sites",
            "splitting/test_methods.py::test_certificate_holds_at_the_pooled_answer_and_nowhere_else",
            (3, 4),
            "splitting/certificate.py:PooledObjective.residual",
        ),
        Row(
            "Eq. 13",
            "The four edges of the circuit close at the pooled fit, and nowhere else",
            f"{CIRCUIT}test_the_pooled_solution_is_a_fixed_point_of_every_row "
            f"{CIRCUIT}test_where_a_run_converges_the_four_residuals_vanish",
            (4,),
            "splitting/status.py:Edges",
        ),
        Row(
            "Eq. 15",
            "The client's problem is solved to a stated residual",
            "clients/test_solvers.py::test_newton_reaches_the_tolerance "
            "clients/test_solvers.py::test_closed_form_solves_least_squares",
            (5, 8),
            "clients/problem.py:Subproblem clients/newton.py:VariationalNewton",
        ),
        Row(
            "Eq. 16",
            r"The dual moves along $\lambda$, so that no change of units or scale of $T$ matters",
            f"{PROOF}[Scale~of~T] "
            "properties/test_equivariance.py::test_iterates_of_natural_duals_are_mapped_onto_each_other",
            (6,),
            "splitting/duals.py:AlongNatural",
        ),
        Row(
            "Eq. 17, 53, 54",
            r"The server's minimum is $\frac{1-\alpha}{K}\sum_k\lambda_k + \alpha(\eta_0 + \sum_k\eta_k)$ "
            r"with $\alpha = 1/(1+\rho K)$",
            f"{PROOF}[Eq.~53] {PROOF}[Eq.~54] "
            "splitting/test_coefficients.py::test_the_server_has_the_weights_of_equation_54",
            (5, 7),
            "splitting/method.py:gather_weights splitting/server.py:Server.gather",
        ),
        Row(
            "Eq. 21, 22, 44, 45",
            r"$\mathcal{N}(m, I)$ without the delta method is ADMM on the smoothed loss",
            f"{CASES}test_the_isotropic_family_is_admm_on_the_smoothed_loss",
            (5,),
            "families/gaussians.py:IsotropicGaussian",
        ),
        Row(
            "Eq. 26 (misprinted)",
            r"The multiplier's step maximises "
            r"$v_k^\top(\theta_k - \theta_g) - \frac{1}{2\rho}\Vert v_k - v_k^{\mathrm{old}}\Vert^2$",
            f"{ERRATA}test_the_multipliers_step_maximises_the_corrected_eq_26",
            (1,),
            "splitting/duals.py:AlongNatural",
        ),
        Row(
            "Eq. 27",
            r"For $\ell_0 = \frac12\Vert\theta\Vert^2$ ADMM's server is Eq. 54 of $\mathcal{N}(m, I)$",
            f"{PROOF}[Eq.~27]",
            (5,),
            "splitting/method.py:gather_weights",
        ),
        Row(
            "Eq. 29–31 (30 misprinted)",
            "An exponential family has the largest entropy for its moments; its multipliers are the natural parameters",
            f"{ERRATA}test_maximum_entropy_has_the_corrected_eq_30",
            (2,),
            "families/base.py:ExponentialFamily",
        ),
        Row(
            "Eq. 32",
            r"Client's optimality: $\nabla_\mu L_k + \eta_k + \rho(\lambda_k - \lambda_g) = 0$, in every family",
            f"{PROOF}[Eq.~32] theory/test_theory.py::test_geometry_is_consistent",
            (2, 9),
            "clients/problem.py:Subproblem.target",
        ),
        Row(
            "Prop. C.1, Eq. 34",
            "Clients iterated to convergence make the server's step a step of the Bayesian learning rule",
            f"{CIRCUIT}test_settled_clients_make_a_step_of_the_blr {PROOF}[Prop.~C.1]",
            (3,),
            f"{METHODS}BLR",
        ),
        Row(
            "App. C.2",
            r"A dual along $\mu$ (Bregman ADMM) is not the natural gradient",
            f"{CIRCUIT}test_duals_along_moments_are_not_natural_gradients "
            "properties/test_equivariance.py::test_other_methods_are_not_equivariant",
            (6,),
            "splitting/duals.py:AlongExpectation",
        ),
        Row(
            "Eq. 35–41",
            r"AMA is BayesADMM with $\alpha = 1$; PVI is AMA with $\rho = 1$",
            f"{CASES}test_rows_with_alpha_one_are_each_other "
            f"{CASES}test_ama_has_no_proximal_term_at_the_server {PROOF}[AMA]",
            (7,),
            f"{METHODS}AMA {METHODS}PVI",
        ),
        Row(
            "Eq. 42",
            r"Damped PVI: $\eta_k \leftarrow (1-\gamma)\eta_k - \gamma\nabla_\mu L_k(\mu_k)$",
            f"{PROOF}[Eq.~42] splitting/test_identities.py::test_damped_duals_forget_geometrically",
            (7,),
            f"{METHODS}PVI",
        ),
        Row(
            "Eq. 43",
            "The Lagrangian is stationary where the circuit is closed",
            f"{CIRCUIT}test_the_lagrangian_is_stationary_at_the_saddle "
            f"{CIRCUIT}test_the_lagrangian_of_conjugate_families_is_stationary_at_the_saddle",
            (),
            "splitting/status.py:Edges",
        ),
        Row(
            "Eq. 48, 60",
            r"Gaussian natural gradient: $(g - Hm, \frac12 H)$, here $(g - Hm, -H)$",
            f"{PROOF}[Eq.~48,~60] losses/test_expectations.py::test_exact_expectations_are_integrals_over_theta",
            (3,),
            "families/gaussian.py:Gaussian.natural_gradient",
        ),
        Row(
            "Eq. 50, 63 (63 misprinted)",
            "KL of full and of diagonal Gaussians",
            f"theory/test_theory.py::test_derived_maps_are_those_of_the_numeric_family "
            f"{ERRATA}test_the_kl_of_diagonal_gaussians_has_the_corrected_eq_63",
            (2, 5),
            "families/gaussian.py:Gaussian.kl",
        ),
        Row(
            "Eq. 46–56, 59–62",
            "One round written out for full and for diagonal Gaussians",
            "theory/test_theory.py::test_updates_agree_with_a_round_in_natural_parameters",
            (5,),
            "theory/updates.py:updates families/gaussians.py:FullGaussian",
        ),
        Row(
            "Prop. D.1, Eq. 57, 58",
            r"For $\ell_k = -\langle c_k, T\rangle$ and $\rho = 1/K$, one round from the prior is exact",
            f"properties/test_one_round.py::test_conjugate_problems_are_solved_in_one_round {PROOF}[Prop.~D.1]",
            (5,),
            "losses/linear_in_statistics.py:LinearInStatistics",
        ),
        Row(
            "Prop. D.1, converse",
            r"With another $\rho$ or start it is not; the error follows a recursion",
            f"{PROOF}[Prop.~D.1,~converse] theory/test_theory.py::test_one_round_needs_rho_1_over_k_and_the_prior "
            "properties/test_one_round.py::test_from_any_start_the_error_follows_the_recursion",
            (5,),
            "splitting/method.py:gather_weights",
        ),
        Row(
            "Alg. 1",
            "IVON-ADMM is BayesADMM for diagonal Gaussians",
            "deep/test_deep_loop.py::test_rounds_are_those_of_algorithm_1 "
            "theory/test_theory.py::test_gaussian_updates_are_algorithm_1",
            (4, 5),
            "torch/methods.py:IVONADMM",
        ),
        Row(
            "Alg. 2, Eq. 64",
            "IVON with a prior and multipliers",
            "deep/test_ivon.py::test_is_algorithm_2 deep/test_ivon.py::test_follows_ivon_opt_step_for_step",
            (),
            "torch/kernel.py:update torch/ivon.py:IVON",
        ),
        Row(
            "Eq. 65–67",
            r"A client's problem in IVON's terms, with temperature $\tau$",
            "deep/test_deep_loop.py::test_local_work_is_the_optimiser_under_appendix_d4",
            (),
            "torch/problem.py:LocalProblem.terms",
        ),
        Row(
            "App. G.1",
            r"IVON-PVI is $\rho = 1$, $\alpha = 1$",
            f"{CASES}test_rho_one_alpha_one_is_pvi_and_in_the_diagonal_family_the_recursion_of_ivon_pvi",
            (),
            "torch/methods.py:IVONPVI",
        ),
    ],
    FEDLAP: [
        Row(
            "Eq. 9",
            "FedLap is PVI with a fixed precision and the delta method",
            f"{CASES}test_fedlap_is_pvi_with_fixed_covariance "
            "splitting/test_damping.py::test_fedlap_by_rows_is_the_textbooks",
            (),
            f"{METHODS}FedLap",
        ),
        Row(
            "Eq. 11–14",
            r"FedLap-Cov is PVI with the second-order delta method: $S_k = \nabla^2\ell_k(m_k) - V_k + S_g$",
            f"{CASES}test_fedlapcov_is_pvi_with_the_second_order_delta_method "
            "clients/test_solvers.py::test_second_order_delta_method_is_laplace",
            (),
            f"{METHODS}FedLapCov losses/expectations.py:Delta",
        ),
        Row(
            "Eq. 15–17",
            "FedLap-Func: the steps of client and server, and the pooled fixed point",
            "deep/test_functional.py::test_the_client_solves_equation_17 "
            "deep/test_functional.py::test_the_server_solves_equation_17 "
            "deep/test_functional.py::test_the_pooled_optimum_is_a_fixed_point",
            (),
            "torch/functional.py:gather_mean",
        ),
        Row(
            "App. E",
            r"Damping by rows, $\gamma_k = N_k/N$, keeps the fixed point",
            "splitting/test_damping.py::test_fixed_points_are_those_of_the_same_damping_for_all",
            (),
            "splitting/method.py:client_coefficients",
        ),
    ],
    FEDIVON: [
        Row(
            "Claim 1, Eq. 12",
            r"$p(\theta \mid D) \propto \prod_k p(\theta \mid D_k) \,/\, p(\theta)^{K-1}$",
            "properties/test_products_of_posteriors.py::test_claim_1",
            (),
            f"{METHODS}BCM",
        ),
        Row(
            "Eq. 6, 7, 13–16",
            "A product of posteriors weighted by rows tempers every likelihood, and has their mean precision",
            "properties/test_products_of_posteriors.py::test_the_weighted_product_tempers_every_likelihood "
            "properties/test_products_of_posteriors.py::test_fedivon_from_the_start_is_that_product_in_every_round",
            (),
            f"{METHODS}FedIvon",
        ),
        Row(
            "Eq. 8",
            r"$\beta$ weighs the server's posterior in a client's own model",
            "properties/test_products_of_posteriors.py::test_beta_weighs_the_server",
            (),
            f"{METHODS}FedIvon",
        ),
        Row(
            "Alg. 1, 2",
            "FedIvon line by line, with either prior of the clients",
            "deep/test_fedivon.py::test_both_modes_are_the_algorithm_written_out",
            (),
            "torch/kernel.py:update",
        ),
    ],
    OWN: [
        Row(
            "[rates](rates.md)",
            "Near the optimum a round is a linear map, known before the run",
            f"{RATES}test_the_round_of_the_code_is_the_one_predicted {RATES}test_a_run_shrinks_by_the_factor",
            (9,),
            "splitting/rates.py:LocalRates.round",
        ),
        Row(
            "[rates](rates.md)",
            r"Damped PVI is locally stable if and only if $\gamma < \gamma_{\max}$; $1/K$ is not always below",
            f"{RATES}test_one_over_k_is_not_a_safe_damping "
            f"{RATES}test_dampings_below_two_over_k_are_safe_where_every_site_is_convex",
            (7, 9),
            "splitting/rates.py:LocalRates.gamma_max",
        ),
        Row(
            "[rates](rates.md) Theorem A",
            r"If $\varphi < \frac12$, undamped PVI with a full covariance contracts locally by $\varphi/(1-\varphi)$ or less",
            f"{RATES}test_undamped_pvi_has_the_factor_of_theorem_a",
            (9,),
            "splitting/rates.py:LocalRates.factor",
        ),
        Row(
            "[rates](rates.md)",
            r"With many rows PVI's factor tends to 0, and that of BayesADMM to $\rho K/(1+\rho K)$",
            f"{RATES}test_bayesadmm_is_slow_where_the_sites_agree_at_once",
            (9,),
            "splitting/rates.py:LocalRates.factor",
        ),
        Row(
            "[rates](rates.md)",
            r"A client with more than $2/K$ of a curvature has no minimum in round 2, until $\rho$ times the prior outweighs it",
            f"{RATES}test_the_cavity_of_round_two "
            f"{RATES}test_raising_rho_does_not_help_where_one_client_has_the_curvature",
            (8, 9),
            "splitting/server.py:Server.is_well_posed",
        ),
        Row(
            "[rates](rates.md)",
            "But for least squares, a client's loss is not convex in the expectation parameter",
            f"{RATES}test_a_site_is_not_convex_in_the_expectation_parameters",
            (9,),
            "splitting/rates.py:local_rates",
        ),
        Row(
            "[rates](rates.md)",
            "Sites that keep more curvature than the posterior do not move the fixed point",
            "splitting/test_sketched.py::test_the_fixed_point_is_the_pooled_optimum "
            "splitting/test_sketched.py::test_a_sketch_whose_diagonal_is_not_exact_moves_the_fixed_point_or_the_rate",
            (),
            "splitting/sketched.py:subproblem",
        ),
        Row(
            "[choosing](choosing.md)",
            r"A client's problem is well posed where $\lambda_g - \eta_k/\rho$ is a distribution",
            "properties/test_well_posed.py::test_well_posed_means_a_proper_distribution_in_every_family "
            "properties/test_well_posed.py::test_well_posed_problems_are_certified",
            (8,),
            "splitting/server.py:Server.is_well_posed splitting/server.py:Server.safe_alpha",
        ),
        Row(
            "[choosing](choosing.md)",
            r"With $\rho = 1/K$, $\sum_k\eta_k = \lambda_g - \eta_0$ after every round from the prior",
            f"{PROOF}[Sites~add~up]",
            (4,),
            "splitting/method.py:gather_weights",
        ),
        Row(
            "[certificate](certificate.md)",
            r"Least curvature $\chi(c)^{-2}$ at $q_g$, and a bound on the third derivative around it",
            f"{DISTANCE}test_the_curvature_at_the_server_and_third_derivatives_keep_their_bounds "
            f"{DISTANCE}test_a_quarter_of_the_bound_is_none",
            (),
            "splitting/distance.py:least_curvature splitting/distance.py:largest_third_derivative",
        ),
        Row(
            "[certificate](certificate.md)",
            "The pooled fit lies within the reported distance of every coefficient",
            f"{DISTANCE}test_the_pooled_fit_lies_within_the_bound {DISTANCE}test_rounding_is_allowed_for",
            (4,),
            "splitting/distance.py:distance_bound",
        ),
        Row(
            "[certificate](certificate.md)",
            r"Standard errors of a mode are within $e^{u/2} - 1$ of those of the pooled mode",
            f"{DISTANCE}test_the_bound_on_standard_errors_is_reached",
            (),
            "splitting/distance.py:distance_bound",
        ),
        Row(
            "[guarantee](guarantee.md) Lemma",
            "The direction of a guarded search descends in the mean and a root of the covariance; along λ it may climb",
            f"{GUARD}test_the_way_is_one_of_descent_on_which_the_objective_is_convex "
            f"{GUARD}test_along_natural_parameters_a_step_with_the_full_curvature_may_climb",
            (9,),
            "splitting/line.py:PosteriorLine.target",
        ),
        Row(
            "[guarantee](guarantee.md) Theorem",
            "For convex losses a guarded search converges to the pooled posterior",
            f"{GUARD}test_a_search_ends_at_the_pooled_optimum {GUARD}test_a_row_with_a_guard_ends_there_too "
            f"{GUARD}test_the_twins_are_lost_on_some_of_these_problems",
            (9,),
            "splitting/guarded.py:Guarded",
        ),
        Row(
            "[diagnosis](diagnosis.md) Theorem",
            "A likelihood has a maximum, or there is a direction that separates the rows; either has a proof from sums",
            "glm/test_separation.py::test_findings_are_those_of_linear_programmes "
            "glm/test_separation.py::test_a_maximum_is_proven_by_the_sums_of_two_exchanges",
            (),
            "glm/separation.py:find_split",
        ),
    ],
}

INTRODUCTION = """# Propositions

Each row is a statement of a paper or of this library. The tests check the statement, the lesson explains it, and the
code computes it. Most of the tests also check that a wrong variant fails. To run a test, type `pytest` and the name in
quotes. *Misprinted* marks an equation of which the tests check the corrected form ([errata](notation.md)). `python
docs/propositions.py` writes this page.

<div class="places" markdown>
"""


def resolve(path: Path, symbol: str) -> int:
    """Return the line of a function, class or method such as `Server.gather` in a file.

    Raises
    ------
    LookupError
        When the file or the symbol is not there.
    """
    if not path.is_file():
        raise LookupError(f"{path} is not there.")
    body, line = _statements(path), 0
    for part in symbol.split("."):
        found = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part]
        if not found:
            raise LookupError(f"{path} has no {symbol}.")
        line, body = found[0].lineno, found[0].body
    return line


@cache
def _statements(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def lesson(number: int) -> Path:
    """Return the script of a lesson.

    Raises
    ------
    LookupError
        When there is not exactly one.
    """
    found = sorted((ROOT / "docs" / "lessons").glob(f"{number:02}_*.py"))
    if len(found) != 1:
        raise LookupError(f"there are {len(found)} lessons {number}.")
    return found[0]


def faults(row: Row) -> Iterator[str]:
    """Say what a row names that is not there; whether pytest collects a test is for the tests to find out."""
    named = [(ROOT / path, symbol.partition("[")[0]) for path, _, symbol in (t.partition("::") for t in row.test_names)]
    named += [
        (ROOT / "bayesadmm_np" / path, symbol) for path, _, symbol in (c.partition(":") for c in row.code.split())
    ]
    if not row.tests or not row.code:
        yield f"{row.where}: no test or no code"
    for path, symbol in named:
        try:
            resolve(path, symbol)
        except LookupError as error:
            yield f"{row.where}: {error}"
    for number in row.lessons:
        try:
            lesson(number)
        except LookupError as error:
            yield f"{row.where}: {error}"


def markdown(lines: bool = False) -> str:
    """Return the page; with `lines` the line of each piece of code, which the site adds and no file keeps."""
    text = INTRODUCTION
    for title, rows in ROWS.items():
        text += f"\n## {title}\n\n| where | statement | lesson | test | code |\n|---|---|---|---|---|\n"
        text += "".join(f"| {' | '.join(_cells(row, lines))} |\n" for row in rows)
    return text + "\n</div>\n"


def _cells(row: Row, lines: bool) -> list[str]:
    lessons = ", ".join(f"[{number}](lessons/{lesson(number).name})" for number in row.lessons)
    code = []
    for path, _, symbol in (place.partition(":") for place in row.code.split()):
        line = f":{resolve(ROOT / 'bayesadmm_np' / path, symbol)}" if lines else ""
        code.append(f"`{symbol}` in `{path}{line}`")
    return [row.where, row.statement, lessons, "<br>".join(f"`{name}`" for name in row.test_names), "<br>".join(code)]


if __name__ == "__main__":
    if wrong := [fault for rows in ROWS.values() for row in rows for fault in faults(row)]:
        raise SystemExit("\n".join(wrong))
    PAGE.write_text(markdown(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {sum(map(len, ROWS.values()))} statements")
