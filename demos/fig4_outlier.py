"""Figure 4: one wrong label slows ADMM down, and not BayesADMM, which needs no uncertainty for that.

Two clients fit a linear classifier with a bias in the plane; client 1 has a point of class 0 deep inside class 1. The
paper shows its points only as a picture, so the points of panels A and B were written down by hand.

A: all points, and contours of the standard deviation of the logit under client 1's posterior after its first solve.
B: distance of the server's boundary from the pooled one of the *same method's own objective*, by round, in units of the
   criterion: a run arrives in the round from which on angle and offset stay within 2° and 0.05, which is 1 here.
   Solid lines take averages over the posterior; dotted lines are the same methods with the mean in place of averages.
C: rounds to arrive for 20 draws of 300 points and one with the wrong label, and of the 300 points alone.

"ADMM, fixed metric" is ADMM whose proximal term measures by the Hessian of the objective at its optimum: curvature
without a posterior. ADMM's best ρ is the best of a grid. BayesADMM has ρ = 1 and the safeguard. At the paper's ρ = 0.2,
solved exactly, BayesADMM has no second round: client 1's problem has no minimum, because ρS_g − V_1 is indefinite.
"""

import numpy as np
from scipy.special import expit

import bayesadmm_np as ba
from bayesadmm_np.demos import shared, style
from bayesadmm_np.demos.shared import Claim, finite, words

DELTA, DEGREES, OFFSET, RHO = 0.2, 2.0, 0.05, 0.2
FLOOR = 1e-2  # of panel B, on which a curve ends
XLIM, YLIM = (-3.4, 3.9), (-3.7, 3.5)  # of panel A
CRITERION = (
    f"first round from which the server's boundary stays within {DEGREES:g}° and {OFFSET:g} of the pooled solution's"
)
OUTLIER, WRONG, LABELS = (3.0, 2.5), (4.0, 4.0), [0, 0, 0, 1, 1, 1]  # of panel A, and of the draws
CLIENTS = [  # points and labels; the outlier is the last row of client 1
    ([[-2.0, -1.0], [-1.5, 0.5], [-2.5, 0.3], [1.5, -0.5], [2.2, 0.4], [1.8, 1.2], [*OUTLIER]], [*LABELS, 0]),
    ([[-1.2, -2.0], [-0.8, 1.5], [-2.0, 2.0], [1.0, -1.5], [0.9, 2.0], [2.5, -0.8]], LABELS),
]
GRID, FEWER = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0), (1.0, 2.0, 5.0, 10.0)  # ADMM's ρ beside RHO; FEWER for the draws
SMALL, BEST, METRIC = f"ADMM, ρ = {RHO:g}", "ADMM, best ρ", "ADMM, fixed metric"
BAYES, BAYES_MEAN, PVI, PVI_MEAN = "BayesADMM", "BayesADMM at the mean", "PVI", "PVI at the mean (FedLap-Cov)"
SAFE, MEAN = {"safeguard": True}, ba.losses.Delta(2)
ROWS = {  # method and options of the runs with a posterior
    BAYES: (ba.methods.BayesADMM(1.0), SAFE),
    BAYES_MEAN: (ba.methods.BayesADMM(1.0), SAFE | {"expectation": MEAN}),
    PVI: (ba.methods.PVI(), {}),
    PVI_MEAN: (ba.methods.FedLapCov(), {}),
}


def problem(clients=CLIENTS):
    return [ba.losses.Logistic(shared.with_ones(points), np.array(labels)) for points, labels in clients]


def scattered(seed, sizes=(150, 150), middle=2.5, sd=(1.0, 1.0), turn=0.0, shift=0.0, outlier=WRONG, label=0, copies=1):
    """Two normal classes a client, around ±middle on the first axis; client 2's plane is turned (degrees) and shifted.

    The outlier is the last row of client 1, if there is one.
    """
    rng, clients = np.random.default_rng(seed), []
    for k, size in enumerate(sizes):
        labels = np.arange(size) % 2
        points = sd * rng.standard_normal((size, 2)) + np.outer(2 * labels - 1, [middle, 0.0])
        if k:
            c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
            points = points @ np.array([[c, s], [-s, c]]) + [shift, shift]
        elif outlier is not None:
            points, labels = np.vstack([points, np.tile(outlier, (copies, 1))]), np.append(labels, [label] * copies)
        clients.append((points, labels))
    return clients


def in_metric(clients, metric, delta, rounds):
    """ADMM (Eq. 5–7) with the proximal term ½‖θ − θ_g‖²_M; M = ρI is the paper's. Yields θ_g of each round."""
    theta, duals, whole = np.zeros(3), np.zeros((len(clients), 3)), delta * np.eye(3) + len(clients) * metric
    for _ in range(rounds):
        own = np.array([nearest(loss, dual, metric, theta) for loss, dual in zip(clients, duals, strict=True)])
        duals += (own - theta) @ metric
        theta = np.linalg.solve(whole, (duals + own @ metric).sum(axis=0))
        yield theta


def nearest(loss, dual, metric, theta_g):
    """argmin ℓ_k(θ) + v_kᵀθ + ½‖θ − θ_g‖²_M by Newton steps, halved until the gradient falls, to rounding."""
    X, y = loss.X, loss.y

    def slope(theta):
        chance = expit(X @ theta)
        return (chance - y) @ X + dual + metric @ (theta - theta_g), chance

    theta, (gradient, chance) = theta_g, slope(theta_g)
    while gradient @ gradient > 1e-20:
        step = np.linalg.solve((X.T * (chance * (1 - chance))) @ X + metric, gradient)
        for halvings in range(30):
            new, there = slope(trial := theta - 0.5**halvings * step)
            if new @ new < gradient @ gradient:
                break
        else:
            break
        theta, gradient, chance = trial, new, there
    return theta


def arrive(thetas, pooled):
    """Return distances in units of the criterion, the round of arrival, and that with the length to 1 % as well."""
    apart = [distance(theta, pooled) for theta in thetas]
    near = [max(abs(angle) / DEGREES, abs(offset) / OFFSET) for angle, offset in apart]
    length = [abs(np.linalg.norm(theta) / np.linalg.norm(pooled) - 1.0) / 0.01 for theta in thetas]
    rounds = shared.arrival([False, *(value <= 1.0 for value in near)])
    return near, rounds, shared.arrival([False, *(max(pair) <= 1.0 for pair in zip(near, length, strict=True))])


def distance(theta, pooled):
    """Angle in degrees and difference of the offsets of two boundaries."""
    angle = np.degrees(np.arctan2(theta[1], theta[0]) - np.arctan2(pooled[1], pooled[0]))
    offset = theta[2] / np.hypot(*theta[:2]) - pooled[2] / np.hypot(*pooled[:2])
    return float((angle + 180.0) % 360.0 - 180.0), float(offset)


def compare(clients, delta=DELTA, rounds=(60, 12), grid=GRID):
    """Run every method; return what `arrive` makes of each, and ADMM's best ρ.

    `rounds` are those of ADMM, and of the methods with curvature.
    """
    losses, full = problem(clients), ba.families.FullGaussian(np.zeros(3), delta)
    isotropic = ba.families.IsotropicGaussian(np.zeros(3), delta)
    optimum = ba.solve_pooled(losses, isotropic, expectation=ba.losses.Delta(1)).posterior.mean
    tried = {
        rho: arrive(list(in_metric(losses, rho * np.eye(3), delta, rounds[0])), optimum) for rho in sorted({RHO, *grid})
    }
    best = min(tried, key=lambda rho: (finite(tried[rho][1]), tried[rho][0][-1]))
    hessian = delta * np.eye(3) + sum(loss.hessian(optimum) for loss in losses)
    found = {SMALL: tried[RHO], BEST: tried[best]}
    found[METRIC] = arrive(list(in_metric(losses, hessian, delta, rounds[1])), optimum)
    for label, (method, options) in ROWS.items():
        server, rule = [], options.get("expectation", method.expectation)
        pooled = ba.solve_pooled(losses, full, expectation=rule).posterior.mean
        watch = {"callback": lambda _, q, server=server: server.append(q.mean), "raise_on_failure": False}
        ended = ba.run(method, losses, full, rounds[1], **options, **watch).status
        near, *counts = arrive(server, pooled)
        found[label] = near, *((None, None) if ended.is_failure else counts)
    return found, best


def compute(rounds=60, draws=20, track=iter):
    """Run the points of panel A, and the draws of panel C with and without the outlier."""
    losses, prior = problem(), ba.families.FullGaussian(np.zeros(3), DELTA)
    curves, best = compare(CLIENTS, rounds=(rounds, rounds))
    first = ba.run(ba.methods.BayesADMM(1.0), losses, prior, 1, **SAFE).client_posteriors[0]
    plain = ba.run(ba.methods.BayesADMM(RHO), losses, prior, rounds, raise_on_failure=False)
    next_problem = RHO * plain.posterior.precision - plain.sites[0].precision  # ρS_g − V_1
    small = {
        "status": plain.status.name,
        "rounds": plain.rounds,
        "least_curvature": np.linalg.eigvalsh(next_problem)[0],
    }
    points, labels = zip(*CLIENTS, strict=True)
    counted = {"with": {label: [] for label in curves}, "without": {label: [] for label in curves}}
    few = {"rounds": (min(rounds, 40), min(rounds, 4)), "grid": FEWER}
    for name, seed in track([(name, seed) for name in counted for seed in range(draws)]):
        found, _ = compare(scattered(seed, outlier=WRONG if name == "with" else None), **few)
        for label, run in found.items():
            counted[name][label].append(run[1])
    return {
        "delta": DELTA,
        "criterion": CRITERION,
        "points": points,
        "labels": labels,
        "covariance": first.covariance,
        "best_rho": best,
        "curves": {label: {"distance": near, "rounds": count} for label, (near, count, _) in curves.items()},
        "small_rho": small,
        "draws": counted,
    }


def middle(counts):
    return float(np.median([finite(count) for count in counts]))


def logit_sd(points, covariance):
    """Posterior standard deviation of the logit at each point."""
    rows = shared.with_ones(points)
    return np.sqrt(np.einsum("ni,ij,nj->n", rows, np.array(covariance), rows))


def claims(numbers):
    own = {label: finite(curve["rounds"]) for label, curve in numbers["curves"].items()}
    dirty, clean = ({label: middle(v) for label, v in numbers["draws"][k].items()} for k in ("with", "without"))
    text, paper = f"on panel A's points, ADMM at ρ = {RHO:g} needs more than 5 rounds", "5 rounds, its own points"
    yield Claim(text, 5 < own[SMALL] < np.inf, words(numbers["curves"][SMALL]["rounds"]), paper, own[SMALL] == 5)
    ended, least = numbers["small_rho"]["rounds"], numbers["small_rho"]["least_curvature"]
    text = f"on panel A's points, BayesADMM at ρ = {RHO:g} has no second round, as client 1's problem has no minimum"
    founded = numbers["small_rho"]["status"] == "ILL_POSED_CLIENT" and ended == 1 and least < 0
    measured = f"ends after {words(ended)}, least eigenvalue of ρS_g − V_1 {least:.2g}"
    yield Claim(text, founded, measured, "2 rounds", False)
    text = "on panel A's points, BayesADMM at ρ = 1 with the safeguard arrives within 2 rounds"
    yield Claim(text, own[BAYES] <= 2, words(numbers["curves"][BAYES]["rounds"]), f"2 rounds, at ρ = {RHO:g}")
    *others, outlier = logit_sd(numbers["points"][0], numbers["covariance"])  # after client 1's first solve
    more = int(np.sum(np.array(others) > outlier))
    text = "on panel A's points, the outlier is not where client 1 is most unsure"
    measured = f"sd of the logit {outlier:.2f}, higher at {more} of the {len(others)} other points"
    yield Claim(text, more > 0, measured, "a higher posterior uncertainty at the outlier", more == 0)
    text = f"in the draws, one wrong label makes ADMM at ρ = {RHO:g} three times as slow or worse"
    measured = f"median {dirty[SMALL]:g} rounds, without the point {clean[SMALL]:g}"
    yield Claim(text, 3 * clean[SMALL] <= dirty[SMALL], measured, "a single outlier slows ADMM down")
    text = "in the draws, ADMM's best ρ halves these rounds"
    yield Claim(text, 2 * dirty[BEST] <= dirty[SMALL], f"median {dirty[BEST]:g} against {dirty[SMALL]:g} rounds")
    text = "in the draws, BayesADMM is not slowed down"
    yield Claim(text, dirty[BAYES] <= 2, f"median {dirty[BAYES]:g} rounds, without {clean[BAYES]:g}", "2 rounds")
    text = "in the draws, with the mean in place of every average BayesADMM is as fast"
    measured, paper = f"median {dirty[BAYES_MEAN]:g} against {dirty[BAYES]:g} rounds", "fast by its use of uncertainty"
    yield Claim(text, dirty[BAYES_MEAN] == dirty[BAYES], measured, paper, dirty[BAYES_MEAN] != dirty[BAYES])
    text = "in the draws, ADMM in a fixed metric of curvature, which has no posterior, is as fast"
    yield Claim(text, dirty[METRIC] <= dirty[BAYES], f"median {dirty[METRIC]:g} against {dirty[BAYES]:g} rounds")


def notes(numbers):
    yield f"rounds are counted to the {numbers['criterion']}"
    own = ", ".join(f"{label} {words(curve['rounds'])}" for label, curve in numbers["curves"].items())
    yield f"on panel A's points: {own} (best ρ = {numbers['best_rho']:g})"
    for name, title in (("with", "with the wrong label"), ("without", "without")):
        rows = numbers["draws"][name]
        said = ", ".join(f"{label} {middle(counts):g}" for label, counts in rows.items())
        yield f"draws {title}, median of {len(rows[BAYES])}: {said}"


SHOWN = {BAYES: "BayesADMM, ρ = 1, safeguard", METRIC: "ADMM, fixed metric (Hessian)"}  # in the figure
LOOKS = {
    SMALL: style.Look(style.MUTED, "s", "-"),
    BEST: style.Look(style.MUTED, "s", (0, (4, 1.2)), hollow=True),
    METRIC: style.Look(style.GREEN, "D", "-"),
    BAYES: style.Look(style.BLUE, "o", "-"),
    BAYES_MEAN: style.Look(style.BLUE, "o", (0, (1, 1.2)), hollow=True),
    PVI: style.Look(style.VERMILION, "v", "-"),
    PVI_MEAN: style.Look(style.VERMILION, "v", (0, (1, 1.2)), hollow=True),
}


def draw(numbers):
    """The points, the distances by round, and the rounds of the draws."""
    figure = style.new_figure(style.WIDTH, 5.7)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.3, 1.0))
    left, right = top.subplots(1, 2, width_ratios=(1.0, 1.2))
    points(left, numbers)
    distances(right, numbers)
    for axes, name in zip(bottom.subplots(1, 2, sharey=True), ("with", "without"), strict=True):
        strips(axes, name, numbers["draws"][name])
    return figure


def points(axes, numbers):
    for i, alpha in enumerate((0.55, 1.0)):
        spots, labels = np.array(numbers["points"][i]), np.array(numbers["labels"][i])
        for label, colour in enumerate(style.CLASS_COLOURS):
            look = {"s": 15, "marker": "os"[label], "facecolor": colour, "edgecolor": "white", "linewidth": 0.4}
            axes.scatter(*spots[labels == label].T, alpha=alpha, zorder=3, **look)
    axes.scatter(*OUTLIER, s=60, facecolor="none", edgecolor=style.VERMILION, linewidth=1.0, zorder=4)
    grid = np.stack(np.meshgrid(np.linspace(*XLIM, 121), np.linspace(*YLIM, 121)), axis=-1)
    sd = logit_sd(grid.reshape(-1, 2), numbers["covariance"]).reshape(grid.shape[:2])
    look = {"levels": [1.5, 2, 3, 4, 5, 6], "colors": style.MUTED, "linewidths": 0.6, "zorder": 1}
    axes.clabel(axes.contour(grid[..., 0], grid[..., 1], sd, **look), fontsize=6, fmt="%g")
    axes.set(xlim=XLIM, ylim=YLIM, aspect="equal", xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    axes.set(xlabel="$x_1$", ylabel="$x_2$")
    axes.set_title("A   Points, and client 1's sd of the logit", fontsize=8)
    axes.tick_params(length=2.5)
    for label, marker, colour in zip(("class 0", "class 1"), "os", style.CLASS_COLOURS, strict=True):
        axes.plot([], [], marker, color=colour, label=label, markersize=4)
    ring = {"markerfacecolor": "none", "markeredgecolor": style.VERMILION, "markersize": 7}
    axes.plot([], [], "o", label="wrong label", **ring)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 3}
    axes.legend(title="client 1 lighter", title_fontsize=6.5, handletextpad=0.1, columnspacing=1.0, **place)


def distances(axes, numbers):
    last = 1 + max(curve["rounds"] or 0 for curve in numbers["curves"].values())
    for label, curve in numbers["curves"].items():
        values = [None, *curve["distance"][:last]]
        name = f"ADMM, best ρ = {numbers['best_rho']:g}" if label == BEST else SHOWN.get(label, label)
        shared.semilog(axes, values, LOOKS[label], FLOOR, label=name, markersize=3.5)
    axes.axhline(1.0, color=style.INK, linewidth=0.8)
    axes.text(8.2, 1.04, f"arrived: {DEGREES:g}° and {OFFSET:g}", va="bottom", fontsize=6.8)
    axes.set_ylabel(f"larger of angle / {DEGREES:g}° and offset / {OFFSET:g}")
    axes.set(xlabel="communication round", title="B   Distance from the pooled boundary")
    axes.set(ylim=(FLOOR, 10), xlim=(0.5, last + 0.5))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=2, fontsize=6.8, labelspacing=0.25)
    style.tidy(axes)


def strips(axes, name, counted):
    never = 80
    for i, (label, counts) in enumerate(counted.items()):
        look, rounds = LOOKS[label], np.array([never if count is None else count for count in counts], dtype=float)
        height = -i + np.linspace(-0.28, 0.28, len(rounds))
        inside = {"facecolor": "white" if look.hollow else look.colour, "edgecolor": look.colour}
        axes.scatter(rounds, height, s=9, marker=look.marker, linewidth=0.6, zorder=3, **inside)
        axes.plot([np.median(rounds)] * 2, [-i - 0.42, -i + 0.42], color=style.INK, linewidth=1.6, zorder=4)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 3, 5, 10, 20, 40, never], ["1", "2", "3", "5", "10", "20", "40", "never"])
    axes.set_xticks([], minor=True)
    axes.set_yticks(-np.arange(len(counted)), [SHOWN.get(label, label) for label in counted])
    title = "C   20 draws, one wrong label" if name == "with" else "20 draws without that point"
    axes.set(xlabel="rounds to arrive", title=title, xlim=(0.8, 110))
    style.tidy(axes)


# a client of `in_metric` ends at gradients below 1e-10, over curvatures of 0.2 or more and times 57/2 degrees: 2e-8
ACCURACY = shared.Accuracy(digits=6, absolute=1e-6)
TITLE = "Figure 4: one wrong label, two clients"
DEMO = shared.Demo("4", "fig4_outlier", TITLE, compute, claims, draw, notes, ACCURACY)

if __name__ == "__main__":
    DEMO.main()
