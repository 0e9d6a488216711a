"""Figure 5a: on ridge regression BayesADMM is exact after one round.

Five clients have two labels each and fit least squares to one-hot labels. There are ten outputs, and the prior is
N(0, I/δ) with δ = 10. The data are the first 500 images: digits at 8 × 8 (640 parameters) or, as in the paper, MNIST
at 7 × 7 (490 parameters).

All methods have the same optimum, the ridge solution m*. The axis is ‖m_g − m*‖/‖m*‖, because ADMM has no covariance
to compare. BayesADMM runs at ρ = 1/K, the value of Proposition D.1. In ADMM ρ is a curvature, so the same number would
mean something else there. ADMM and BregmanADMM therefore each run on a grid of ρ, and the figure shows the run with
the smallest error at the end. The results file has every run.
"""

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.demos import shared, style

DELTA = 10.0
SIDES = {"digits": 8, "mnist": 7}
SETTLED = 3  # rounds of BayesADMM; those after the first only show that it stays where it is
EXACT = 1e-12
ACCURACY = shared.Accuracy(digits=6, absolute=1e-14)  # a relative error of 640 numbers is 10 to 50 roundings


ADMM_RHOS, BREGMAN_RHOS = (0.2, 1.0, 5.0, 25.0, 125.0), (0.05, 0.2, 1.0)


def compute(dataset="digits", first=500, side=0, rounds=8, admm_rhos=ADMM_RHOS, bregman_rhos=BREGMAN_RHOS, track=iter):
    """Run every method and ρ; `side` 0 is the paper's number of pixels."""
    images, text = shared.label_pairs(dataset, side or SIDES[dataset], first)
    clients = [ba.losses.LeastSquares(X, np.eye(10)[y]) for X, y in images]
    zero = np.zeros(clients[0].dim)
    isotropic, full = ba.families.IsotropicGaussian(zero, DELTA), ba.families.FullGaussian(zero, DELTA)
    optimum = ba.solve_pooled(clients, isotropic, expectation=ba.losses.Delta(1)).posterior.mean

    table = [
        *((ba.methods.ADMM(rho), isotropic, rounds) for rho in admm_rhos),
        *((ba.methods.BregmanADMM(rho), full, rounds) for rho in bregman_rhos),
        (ba.methods.BayesADMM(rho=1 / len(clients)), full, SETTLED),
    ]
    tried = [run(*row, clients, optimum) for row in track(table)]

    def best(method):
        """Return the run with the smallest error after its last round; a failed run only if all failed."""
        own = [curve for curve in tried if curve["method"] == method]
        return min(own, key=lambda curve: (shared.failed(curve), curve["error"][-1]))

    curves = [best(method) for method in ("ADMM", "BregmanADMM", "BayesADMM")]
    sizes = {"parameters": len(zero), "clients": len(clients), "delta": DELTA}
    return {"data": text, **sizes, "curves": curves, "tried": tried}


def run(method, prior, rounds, clients, optimum):
    """Return the relative error of the server's mean at the start and after every round."""
    means = [prior.mean]
    options = {"tol": 1e-300, "raise_on_failure": False}  # every curve has its full length
    result = ba.run(method, clients, prior, rounds, callback=lambda _, q: means.append(q.mean), **options)
    error = [float(np.linalg.norm(mean - optimum) / np.linalg.norm(optimum)) for mean in means]
    return {"method": method.name, "rho": method.rho, "error": error, "status": result.status.name}


def stated(error):
    return shared.size(error, below=ACCURACY.absolute)


def claims(numbers):
    admm, bregman, bayes = numbers["curves"]
    first, later = bayes["error"][1], max(bayes["error"][1:])
    text = f"BayesADMM is at the ridge solution to {EXACT:g} after one round"
    yield shared.Claim(text, first <= EXACT, stated(first), "it converges in a single round")
    yield "and stays there", later <= EXACT, f"largest later error {stated(later)}"
    for curve in (admm, bregman):
        best, rounds = min(curve["error"]), len(curve["error"]) - 1
        claim = f"{curve['method']}, at the best ρ of its grid, is still above 1e-6 at the end"
        measured = f"{best:.1e} after {rounds} rounds (ρ = {curve['rho']:g})"
        yield shared.Claim(claim, best > 1e-6, measured, "it needs many steps")


def notes(numbers):
    yield f"{numbers['data']}, {numbers['parameters']} parameters, δ = {numbers['delta']:g}"
    for curve in filter(shared.failed, numbers["tried"]):
        after = len(curve["error"]) - 1
        yield f"{curve['method']} at ρ = {curve['rho']:g} ends after {after} rounds: {curve['status']}"


def draw(numbers):
    figure = style.new_figure(3.5, 2.6)
    axes = figure.subplots()
    for curve in numbers["curves"]:
        look, error = style.look(curve["method"]), np.array(curve["error"])
        error = np.where(error > ACCURACY.absolute, error, 1e-15)  # inside the band of rounding
        label = f"{curve['method']} (ρ = {curve['rho']:g})"
        axes.semilogy(error, label=label, clip_on=False, zorder=3, **look.kwargs())
        if shared.failed(curve):
            shared.cross(axes, len(error) - 1, error[-1], look.colour)
    axes.axhspan(1e-17, 1e-14, color="#F0F0F0", zorder=0)
    axes.text(0.02, 3e-17, "rounding", fontsize=6.5, color=style.MUTED, transform=axes.get_yaxis_transform())
    axes.set(xlim=(0, max(len(curve["error"]) for curve in numbers["curves"]) - 1), ylim=(1e-17, 10))
    axes.set(xlabel="communication round", ylabel=r"$\|m_g - m^*\|\,/\,\|m^*\|$", title="Ridge regression")
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
    style.tidy(axes)
    return figure


DEMO = shared.Demo(
    "5a", "fig5a_ridge", "Figure 5a: ridge regression", compute, claims, draw, notes, ACCURACY, needs=shared.find_images
)

if __name__ == "__main__":
    DEMO.main()
