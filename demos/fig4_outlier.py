"""Figure 4: a single outlier slows ADMM down, and does not slow BayesADMM down.

Two clients fit a linear classifier with a bias in the plane. The paper shows its points only as a picture, so these
were written down by hand: two classes, six points a client, and one more of class 0 deep inside class 1 on client 1.
A run has arrived in the first round from which the server's boundary stays near that of the pooled solution of the
*same method's own objective* (MAP for ADMM, variational Bayes for BayesADMM).

At the paper's ρ = 0.2, solved exactly, BayesADMM comes to a client problem that has no minimum: ρS_g − V_1 is
indefinite. The run ends there and says so; the figure shows ρ = 1 beside it.
Outliers at (4, 0), (2.5, −2) and (5, 3) end so at ρ = 0.2, too; at ρ = 1 the last two give the figure's 2 and 7 rounds.
"""

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.demos import shared, style

DELTA, DEGREES, OFFSET = 0.2, 2.0, 0.05
CRITERION = (
    f"first round from which the server's boundary stays within {DEGREES:g}° and {OFFSET:g} of the pooled solution's"
)
OUTLIER, LABELS = (3.0, 2.5), [0, 0, 0, 1, 1, 1]
CLIENTS = [  # points and labels; the outlier is the last row of client 1
    ([[-2.0, -1.0], [-1.5, 0.5], [-2.5, 0.3], [1.5, -0.5], [2.2, 0.4], [1.8, 1.2], [*OUTLIER]], [*LABELS, 0]),
    ([[-1.2, -2.0], [-0.8, 1.5], [-2.0, 2.0], [1.0, -1.5], [0.9, 2.0], [2.5, -0.8]], LABELS),
]


def problem():
    return [ba.losses.Logistic(shared.with_ones(points), np.array(labels)) for points, labels in CLIENTS]


def compute(rhos=(0.2, 1.0), rounds=60, track=iter):
    """Run both methods at the paper's ρ, then both at the larger one."""
    isotropic, full = ba.families.IsotropicGaussian(np.zeros(3), DELTA), ba.families.FullGaussian(np.zeros(3), DELTA)
    table = [row for rho in rhos for row in ((ba.methods.ADMM(rho), isotropic), (ba.methods.BayesADMM(rho), full))]
    points, labels = zip(*CLIENTS, strict=True)
    runs = [run(method, prior, rounds) for method, prior in track(table)]
    return {"delta": DELTA, "criterion": CRITERION, "runs": runs, "points": points, "labels": labels}


def run(method, prior, rounds):
    clients, server = problem(), []
    pooled = ba.solve_pooled(clients, prior, expectation=method.expectation).posterior.mean
    result = ba.run(method, clients, prior, rounds, callback=lambda _, q: server.append(q), raise_on_failure=False)
    drawn = range(1, min(len(server), shared.SHOWN) + 1)
    client1 = [ba.run(method, clients, prior, t).client_posteriors[0] for t in drawn]  # run again up to each round
    apart = [distance(q.mean, pooled) for q in server]
    inside = [abs(angle) <= DEGREES and abs(offset) <= OFFSET for angle, offset in apart]
    bayes = result.posterior.learns_precision
    next_problem = method.rho * result.posterior.precision - result.sites[0].precision if bayes else None  # ρS_g − V_1
    return {
        "method": method.name,
        "rho": method.rho,
        "pooled": pooled,
        "server": [q.mean for q in server],
        "client1": [q.mean for q in client1],
        "server_covariance": [q.covariance for q in server[: shared.SHOWN]] if bayes else [],
        "client1_covariance": [q.covariance for q in client1] if bayes else [],
        "angle": [angle for angle, _ in apart],
        "offset": [offset for _, offset in apart],
        "rounds": None if result.status.is_failure else shared.arrival([False, *inside]),
        "least_curvature": float(np.linalg.eigvalsh(next_problem)[0]) if bayes else None,
        "status": result.status.name,
    }


def distance(theta, pooled):
    """Angle in degrees and difference of the offsets of two boundaries."""
    angle = np.degrees(np.arctan2(theta[1], theta[0]) - np.arctan2(pooled[1], pooled[0]))
    offset = theta[2] / np.hypot(*theta[:2]) - pooled[2] / np.hypot(*pooled[:2])
    return float((angle + 180.0) % 360.0 - 180.0), float(offset)


def claims(numbers):
    admm_small, bayes_small, admm, bayes = numbers["runs"]
    small, large = admm_small["rho"], admm["rho"]
    claim = f"at ρ = {large:g} BayesADMM arrives within 2 rounds, ADMM needs at least twice as many"
    good = None not in (admm["rounds"], bayes["rounds"]) and bayes["rounds"] <= 2 <= admm["rounds"] / bayes["rounds"]
    yield claim, good, f"BayesADMM {bayes['rounds']}, ADMM {admm['rounds']}"
    claim = f"at ρ = {small:g} BayesADMM arrives within 2 rounds, or says which client has no minimum"
    measured, least = f"BayesADMM {bayes_small['rounds']}", bayes_small["least_curvature"]
    if ends := bayes_small["status"] == "ILL_POSED_CLIENT":
        measured = f"client 1 has no minimum in round {len(bayes_small['server']) + 1}: "
        measured += f"least eigenvalue of ρS_g − V_1 is {least:.2g}"
    yield claim, least < 0 if ends else (bayes_small["rounds"] or 99) <= 2, measured
    claim, rounds = f"at ρ = {small:g} ADMM needs 5 rounds or more", admm_small["rounds"]
    yield claim, rounds is not None and rounds >= 5, f"ADMM {rounds}"


def notes(numbers):
    yield f"rounds are counted to the {numbers['criterion']}"
    covariance = numbers["runs"][-1]["client1_covariance"][0]
    *others, outlier = shared.logit_sd(shared.with_ones(numbers["points"][0]), covariance)
    more = sum(np.array(others) > outlier)
    yield (
        "the paper explains the speed by a higher uncertainty at the outlier; here, after client 1's first solve, the "
        f"sd of the logit is {outlier:.2f} at the outlier, higher at {more} of its {len(others)} other points"
    )


def draw(numbers):
    """ADMM above, BayesADMM below; for each ρ the server and client 1."""
    figure = style.new_figure(style.WIDTH, 4.2)
    panels = figure.subplots(2, 4, sharex=True, sharey=True)
    for i, run in enumerate(numbers["runs"]):
        row, column = i % 2, 2 * (i // 2)
        for axes, where in zip(panels[row, column : column + 2], ("server", "client 1"), strict=True):
            shared.boundaries_by_round(axes, numbers, run, where, OUTLIER)
        panels[row, 0].set_ylabel(f"{run['method']}\n$x_2$")
    for axes in panels[1]:
        axes.set_xlabel("$x_1$")
    shared.plane_legend(figure)
    return figure


DEMO = shared.Demo("4", "fig4_outlier", "Figure 4: one outlier, two clients", compute, claims, draw, notes)

if __name__ == "__main__":
    DEMO.main()
