"""`bayesadmm compare`: several methods on one data set, held against the pooled answer; a failure is a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from .._errors import Words
from ..estimators.search import newton_sites
from ..families import FullGaussian
from ..families.gaussians import FAMILIES
from ..glm.layout import Layout
from ..glm.prior import Prior
from ..splitting.average import as_step
from ..splitting.loop import run
from ..splitting.method import Method
from ..splitting.methods import TABLE
from ..splitting.pooled import solve_pooled
from ..splitting.step import Step
from ._design import choose_kind, code_labels, fit_columns, site_names, target_units
from ._formula import listed_rows
from ._methods import knobs
from ._options import DataSettings, Files, Json, Names, Progress, Spread, at_least, option
from ._terminal import Refused, in_options, missing_name, note, print_json, require_writable, text_table, write_csv

CLOSE = 0.01
"""Standard deviations: close to the pooled answer."""
FLOOR = 1e-9
"""Standard deviations: below, the pooled answer itself is not known better."""


def compare(
    data: Files,
    /,
    *,
    settings: Annotated[DataSettings, Spread],
    methods: Annotated[Names, option("Methods to run. Default: all that apply.", "A,B,C")] = (),
    rho: Annotated[float | None, option("ρ > 0, for the methods that have it.")] = None,
    gamma: Annotated[float | None, option("γ in (0, 1], for the methods that have it.")] = None,
    family: Annotated[str, option("Family of the methods that can use either.", choices=("full", "diagonal"))] = "full",
    prior_precision: Annotated[
        float | None,
        option(
            "Prior precision of every coefficient, the intercept too, as most methods need one. 0 is none, and leaves "
            "these out. Default: 1 (of a linear regression 1 over the variance of the target).",
            check=at_least(0),
        ),
    ] = None,
    prior_unit: Annotated[
        Literal["unit", "sd"],
        option("Unit of the coefficients, and of the columns of the run: as they are, or per standard deviation."),
    ] = "sd",
    tol: Annotated[float, option("Tolerance on the pooled stationarity residual.")] = 1e-6,
    rounds: Annotated[int, option("Maximum number of rounds of each method.", check=at_least(1))] = 50,
    out: Annotated[Path | None, option("Folder for the table and the plot.", "DIR")] = None,
    json: Json = False,
    progress: Progress = True,
) -> None:
    r"""Run every method that applies on one data set, and compare each with the pooled answer.

    Each method is run once, with exact solves. The distance is the largest of
    |coefficient − pooled coefficient| in posterior standard deviations, where the
    pooled answer is of the method's own kind: the posterior mean of its family, or
    the mode for the methods that work at a point. A method that fails is a row that
    says so. Every coefficient, the intercept too, has a prior here, because most
    methods need one; fit has none by default. --prior-precision 0 leaves out the
    methods that need a prior, and names them.

    Examples of use:
      bayesadmm compare patients.csv --target died --client hospital
      bayesadmm compare patients.csv --target died --client hospital --out results
      bayesadmm compare patients.csv --target died --client hospital \
          --methods PVI,BayesADMM,FedAvg --rho 2 --rounds 200

    With --out: compare.csv (the table), and the distance after each round as
    compare.svg and compare.png.

    Exit codes: 0 the table was made, 2 the command or the data were refused.
    """
    from tqdm import tqdm

    if out is not None:
        require_writable(out)
    for name in methods:
        if name not in TABLE:
            raise Refused(f"--methods: {missing_name('there is no method', name, TABLE)}")
    given = {key: value for key, value in (("rho", rho), ("gamma", gamma)) if value is not None}
    chosen = [TABLE[name](**{key: given[key] for key in given if key in knobs(name)}) for name in methods or TABLE]
    # the family asked for, or the one that the method demands; a flat prior is for the full one alone
    asked = FAMILIES[family]
    allowed = [as_step(method).row.families for method in chosen]
    kinds = [asked if not some or asked in some else some[0] for some in allowed]
    names = list(methods or TABLE)
    has_prior = prior_precision != 0.0
    runs = [item for item in zip(names, chosen, kinds, strict=True) if has_prior or item[2] is FullGaussian]
    left_out = [name for name in names if name not in [label for label, *_ in runs]]
    if not runs:
        raise Refused(f"--prior-precision must be > 0 for all of these: {', '.join(left_out)}.")
    sites, losses, precision, scale = _losses(data, settings, prior_precision, prior_unit)
    problem = Problem(sites, losses, precision * scale**2)
    prior = Prior(precision, prior_unit, penalize_intercept=True).words(has_intercept=True)
    bar = tqdm(runs, "compare", unit="run", disable=not progress)
    trials = [problem.trial(label, method, kind, rounds, tol) for label, method, kind in bar]
    # those that cannot say how far they are come last
    trials.sort(key=lambda item: (item[2], item[1][-1] if item[1] else np.inf))
    records = [record for record, *_ in trials]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_csv(out / "compare.csv", records)
        _draw({record["method"]: distances for record, distances, _ in trials if distances}, out)
        note(f"compare.csv, compare.svg and compare.png written to {out}.")
    if json:
        print_json({"close_sd": CLOSE, "prior_precision": prior, "left_out": left_out, "methods": records})
        return
    header = ["method", "family", "rounds", f"to {CLOSE:g} sd", "numbers sent", "distance / sd", "status"]
    keys = ("method", "family", "rounds", "rounds_to_close", "floats", "distance_sd", "status")
    print(text_table(header, [[_cell(record[key]) for key in keys] for record in records], left=2))
    print("\nDistance from the pooled answer of the method's own kind.", end=" ")
    print(f"Prior precision: {prior}.")
    if left_out:
        print(f"Left out, because they need a prior: {', '.join(left_out)}.")
    for record, _, failed in trials:
        if failed:
            print(f"✗ {record['method']}: {record['message']}")


@dataclass
class Problem:
    """The sites' losses and a prior, with the pooled answers that were found."""

    sites: tuple[str, ...]
    clients: list[Any]
    precision: float
    answers: dict[Any, Any] = field(default_factory=dict)

    def prior(self, kind: Any) -> Any:
        """Return N(0, I/precision) in a family."""
        return kind(np.zeros(self.clients[0].dim), self.precision)

    def pooled(self, kind: Any, rule: Any) -> Any:
        """Return the pooled answer of a family and an expectation rule, which is found once."""
        key = kind, repr(rule)
        if key not in self.answers:
            self.answers[key] = solve_pooled(self.clients, self.prior(kind), expectation=rule).posterior
        return self.answers[key]

    def trial(
        self, label: str, method: Method | Step, kind: Any, rounds: int, tol: float
    ) -> tuple[dict[str, Any], list[float], bool]:
        """Run one method; return its record, its distances by round, and whether it failed."""
        record: dict[str, Any] = {
            "method": label,
            "family": next(name for name, known in FAMILIES.items() if known is kind),
        }
        record |= {"status": "refused", "rounds": 0, "rounds_to_close": None, "floats": 0, "distance_sd": float("nan")}
        record |= {"certificate_holds": False, "message": ""}
        prior, iterates = self.prior(kind), list[Any]()
        try:
            goal, unit = (
                self.pooled(kind, as_step(method).row.expectation).mean,
                np.sqrt(self.pooled(FullGaussian, None).variance),
            )
            # under a flat prior a run begins at the first Newton step
            start = None if self.precision else newton_sites(self.clients, prior, np.zeros(prior.dim))
            options: dict[str, Any] = {"tol": tol, "sites": start, "raise_on_failure": False}
            result = run(method, self.clients, prior, rounds, callback=lambda _, q: iterates.append(q), **options)
        except (ValueError, RuntimeError) as error:
            return record | {"message": in_options(error)}, [], True
        distances, failed = [float(np.max(np.abs(q.mean - goal) / unit)) for q in iterates], result.status.is_failure
        far = max((k for k, distance in enumerate(distances, 1) if not distance <= CLOSE), default=0)
        record |= {"status": result.status.name.lower().replace("_", " "), "rounds": result.rounds}
        record["rounds_to_close"] = far + 1 if far < len(distances) else None
        record["floats"] = sum(one.floats_down + one.floats_up for one in result.history)
        record["distance_sd"] = distances[-1] if distances else float("nan")
        record["certificate_holds"] = not failed and result.certificate().is_stationary
        record["message"] = result.message
        if result.failure is not None:
            record["message"] = result.failure.worded(Words(client=lambda k: f"site {self.sites[k]!r}"))
        return record, distances, failed


def _losses(
    paths: Sequence[Path], settings: DataSettings, given: float | None, unit: str
) -> tuple[tuple[str, ...], list[Any], float, float]:
    """Return the sites' names and losses, the prior's precision, and the target's scale.

    The noise is that of pooled least squares.
    """
    if settings.offset is not None or settings.exposure is not None:
        raise Refused("--offset and --exposure are options of fit: here methods are compared without them.")
    rows = listed_rows(paths, settings)
    kind, classes = choose_kind(rows, settings)
    kind = kind.identified if given == 0.0 else kind
    target = code_labels(rows, settings.target, classes)
    weights = np.ones(len(target)) if rows.weights is None else rows.weights
    columns, n_outputs, noise = fit_columns(rows, unit == "sd"), kind.n_outputs(len(classes)), 1.0
    design = Layout(len(columns.scale), n_outputs, has_intercept=True).design(columns.design(rows.matrix))
    _, scale = target_units(kind, target, rows.weights, standardize=True)
    if kind.has_noise:
        target, root = target / scale, np.sqrt(weights)
        theta = np.linalg.lstsq(root[:, None] * design, root * target, rcond=None)[0]
        noise = float(weights @ (target - design @ theta) ** 2) / max(float(weights.sum()) - design.shape[1], 1.0)
        if not noise > 0.0:
            raise Refused("the columns fit the target exactly: there is no noise to compare methods under.")
    sites, names = site_names(rows), rows.site.astype(str)
    parts = [names == name for name in sites]
    losses = [kind.make_loss(design[here], target[here], weights[here], None, n_outputs, noise) for here in parts]
    return sites, losses, 1.0 / scale**2 if given is None else given, scale


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.1e}"
    return "–" if value is None else str(value).removeprefix("round ")


def _draw(curves: dict[str, list[float]], folder: Path) -> None:
    """Draw the distance by round; the nearest six methods have colours, the others are grey."""
    from ..demos import style

    colours = (style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.INK)
    with style.context():
        figure = style.new_figure(style.WIDTH, 3.4)
        axes = figure.subplots()
        for j, (name, distances) in enumerate(curves.items()):
            colour, label = (colours[j], name) if j < len(colours) else ("#B5B5B5", None)
            rounds = np.arange(1, len(distances) + 1)
            axes.plot(rounds, np.maximum(distances, FLOOR), color=colour, label=label, marker=".", zorder=-j)
        axes.axhline(CLOSE, color=style.MUTED, linewidth=0.6, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="round", ylabel="distance / sd")
        axes.set_title("Distance from the pooled answer by round")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        style.tidy(axes)
        style.save(figure, folder, "compare")
