"""A user's own package: Weibull regression of survival times, a likelihood with a parameter beside the coefficients."""

import numpy as np

from bayesadmm_np.estimators import Kind
from bayesadmm_np.glm.kinds import LOG, Target
from bayesadmm_np.losses.likelihood import Derivatives, SiteLikelihood


class Weibull(SiteLikelihood):
    """Σ exp(f) t^k − d (f + log k + (k − 1) log t), the hazard being exp(f) k t^(k − 1); the parameter is log k."""

    is_convex = False

    def derivatives(self, theta):
        (time, died), w, k = self.y.T, self.weights, np.exp(theta[0])
        f, log_time = self.predictor(theta), np.log(time)
        total = np.exp(f + k * log_time)
        value = total - died * (f + theta[0] + (k - 1.0) * log_time)
        own = total * k * log_time
        gradient = self.X.T @ (w * (total - died))
        hessian = (self.X * (w * total)[:, None]).T @ self.X
        gradient[0] = w @ (own - died * (1.0 + k * log_time))
        hessian[0] = hessian[:, 0] = self.X.T @ (w * own)
        hessian[0, 0] = w @ (own * (1.0 + k * log_time) - died * k * log_time)
        return Derivatives(w @ value, gradient, hessian)


def started(layout, ask):
    """Zeros, but the hazard of the times without effects: its logarithm is known from one answer at zero."""
    from bayesadmm_np.glm.questions import DerivativesQuestion

    theta = np.zeros(layout.dim)
    answers = ask(DerivativesQuestion(theta))
    total = sum(one.hessian[-1, -1] for one in answers)
    theta[-1] = np.log((total - sum(one.gradient[-1] for one in answers)) / total)
    return theta


def weibull():
    """Survival times with a monotone hazard."""
    return Kind(
        "weibull",
        "Weibull regression",
        Target("times > 0, and 0 or 1"),
        LOG,
        likelihood=Weibull,
        form="survival",
        response=(2,),
        auxiliary=lambda classes: ("log(shape)",),
        start=started,
        ratio="hazard ratio",
        derived=lambda own, spread: {"Shape": (np.exp(own[0]), np.exp(own[0]) * np.sqrt(spread[0, 0]))},
    )
