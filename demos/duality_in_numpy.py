"""ADMM and variational Bayes are one algorithm: all of it in one file, to be read from top to bottom.

Two hospitals know each patient's dose, and whether the patient recovered. They fit one logistic regression, and show
nobody a patient. ADMM finds one value of θ, BayesADMM a normal distribution q(θ). Both are three lines, the loop in
`run` below. The family of q makes the method:

    N(m, I), with averages at the mean m      ADMM
    N(m, S⁻¹), S diagonal                     BayesADMM, diagonal covariance
    N(m, S⁻¹)                                 BayesADMM, full covariance; PVI is its case ρ = 1, α = 1

Equation numbers are those of *Federated ADMM from Bayesian Duality*. Read with one question: why is ADMM's multiplier a
natural gradient? Then flip a sign in Eq. 16, drop `/ K` in Eq. 54, or give PVI the mask DIAGONAL, and guess the table.
"""

import numpy as np

# ---- data: an intercept and a dose for each patient; y = 1 means recovered -------------------------------------------
K, d, rng = 2, 2, np.random.default_rng(3)
doses = [rng.normal(0.5, 1.0, 30), rng.normal(1.5, 0.7, 20)]  # the second hospital gives more
X = [np.column_stack([np.ones(len(x)), x]) for x in doses]
y = [(rng.random(len(x)) < 1 / (1 + np.exp(1.0 - 1.5 * x))).astype(float) for x in doses]

# ---- families: q(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ)) ------------------------------------------------------------ Eq. 10
# Here T(θ) = (θ, −½θθᵀ). Then λ = (Sm, S), and η_k = (v_k, V_k). The paper takes T(θ) = (θ, θθᵀ): its λ is (Sm, −½S),
# its η_k is (v_k, −½V_k). Both are the same q. λ, μ and η_k are arrays: column 0 belongs to θ, the others to −½θθᵀ.
# A family is a mask with 1 for each entry of T(θ) that it has. N(m, I) has θ alone, and S = I never changes.
FULL, DIAGONAL, ISOTROPIC = (np.column_stack([np.ones(d), S]) for S in (np.ones((d, d)), np.eye(d), np.zeros((d, d))))


def natural(m, S):  # λ
    return np.column_stack([S @ m, S])


def moments(λ):  # m and S⁻¹
    return np.linalg.solve(λ[:, 1:], λ[:, 0]), np.linalg.inv(λ[:, 1:])


def expectation(λ):  # μ = E_q[T(θ)] = ∇A(λ)
    m, covariance = moments(λ)
    return np.column_stack([m, -0.5 * (np.outer(m, m) + covariance)])


def A(λ):  # the log-partition function, up to a constant
    return 0.5 * λ[:, 0] @ moments(λ)[0] - 0.5 * np.log(np.linalg.det(λ[:, 1:]))


def along_λ(function, λ):  # the exact derivative along each entry of λ, by a tiny imaginary step; S stays symmetric
    steps = [np.column_stack([E[:, 0], (E[:, 1:] + E[:, 1:].T) / 2]) for E in np.eye(λ.size).reshape(-1, *λ.shape)]
    return np.array([function(λ + 1e-20j * step).imag / 1e-20 for step in steps])


# ---- a client's loss: L_k(μ) = E_q[ℓ_k] ---------------------------------------------------------------------- Eq. 9
# The loss of a row x needs the logit f = xᵀθ alone, and f ~ N(xᵀm, xᵀS⁻¹x): one integral for each row. Equal steps in z
# give it to 1e-13 while the standard deviation of f is at most 4. (32 Gauss–Hermite nodes err by 1e-8 and more at 2.)
z = np.linspace(-9, 9, 128)
weights = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum()


def logits(λ, X_k, family):
    m, covariance = moments(λ)
    sd = np.sqrt(((X_k @ covariance) * X_k).sum(1))
    return (X_k @ m)[:, None] + (0 if family is ISOTROPIC else sd[:, None]) * z  # 0: the delta method, E_q[ℓ] ≈ ℓ(m)


def expected_loss(λ, X_k, y_k, family):  # a sum over rows, never a mean
    f = logits(λ, X_k, family)
    return ((np.log(1 + np.exp(f)) - y_k[:, None] * f) @ weights).sum()


def derivatives(λ, X_k, y_k, family):  # g = E_q[∇ℓ_k] and H = E_q[∇²ℓ_k]
    p = 1 / (1 + np.exp(-logits(λ, X_k, family)))
    return X_k.T @ (p @ weights - y_k), X_k.T * ((p * (1 - p)) @ weights) @ X_k


def natural_gradient(λ, X_k, y_k, family):  # ∇_μ L_k = F(λ)⁻¹ ∇_λ L_k = (g − Hm, −H)                    Eq. 11, 21, 48
    g, H = derivatives(λ, X_k, y_k, family)
    H = family[:, 1:] * H
    return np.column_stack([g - H @ moments(λ)[0], -H])


# ---- the algorithm ---------------------------------------------------------------------------------------------------
η_0 = natural(np.zeros(d), np.eye(d))  # the prior π_0 = N(0, I), or ADMM's regulariser ℓ_0(θ) = ½‖θ‖²


def client(λ_g, η_k, X_k, y_k, ρ, family):  # argmin L_k(μ) + ⟨η_k, μ⟩ + ρ KL(q‖q_g)                            Eq. 15
    λ_k = λ_g  # the gradient of KL along μ is λ − λ_g; for N(m, I), KL = ½‖m − m_g‖²                in ADMM Eq. 5
    for _ in range(100):
        residual = natural_gradient(λ_k, X_k, y_k, family) + η_k + ρ * (λ_k - λ_g)  # 0 at the minimum          Eq. 32
        if abs(residual).max() < 1e-13:
            break
        m = moments(λ_k)[0]  # below, Newton's step for m and a natural-gradient step for S
        curvature = derivatives(λ_k, X_k, y_k, family)[1] - η_k[:, 1:] + ρ * λ_g[:, 1:]
        m_new = m - np.linalg.solve(curvature, residual[:, 0] - residual[:, 1:] @ m)
        λ_k = natural(m_new, λ_k[:, 1:] - residual[:, 1:] / ρ)
    return λ_k


def run(family, ρ, α=None, tol=1e-8, rounds=200):
    α = 1 / (1 + ρ * K) if α is None else α
    λ_g, η, history = η_0, [0 * η_0] * K, []
    while not history or (len(history) < rounds and tol < max(history[-1][3]) < 1e6):
        λ = [client(λ_g, η[k], X[k], y[k], ρ, family) for k in range(K)]  # the clients get q_g                 Eq. 15
        # At its minimum a client has ∇L_k(μ_k) + η_k + ρ(λ_k − λ_g) = 0. The last two terms are the new η_k, so it is
        # −∇L_k(μ_k): ADMM's multiplier is the natural gradient of the client's loss, with a minus, in every round.
        η = [η[k] + ρ * (λ[k] - λ_g) for k in range(K)]  #                                   Eq. 16; in ADMM Eq. 6, 8
        λ_g = (1 - α) * sum(λ) / K + α * (η_0 + sum(η))  # the minimum of Eq. 17             Eq. 54; in ADMM Eq. 7
        history.append((λ_g, λ, η, circuit(λ_g, λ, η, family)))
    return history


def circuit(λ_g, λ, η, family):  # by how much each of the four conditions of the solution is violated          Eq. 13
    gradient = [natural_gradient(λ[k], X[k], y[k], family) for k in range(K)]
    return (
        max(abs(family * (expectation(λ[k]) - expectation(λ_g))).max() for k in range(K)),  # μ_k = μ_g
        max(abs(η[k] + gradient[k]).max() for k in range(K)),  # η_k = −∇L_k(μ_k)
        abs(λ_g - η_0 - sum(η)).max(),  # λ_g = Σ_k η_k: q_g is the prior times the sites exp⟨η_k, T(θ)⟩    Eq. 12, 14
        abs(expectation(λ_g).ravel() - along_λ(A, λ_g)).max(),  # μ_g = ∇A(λ_g): true in any round
    )


def pooled(family):  # argmin Σ_k L_k(μ) + KL(q‖π_0): one client that has all rows, with ρ = 1 and no multiplier   Eq. 9
    return client(η_0, 0 * η_0, np.vstack(X), np.concatenate(y), 1.0, family)


METHODS = {  # family, ρ (the quickest of ½, 1, 2, 3 for this data), α
    "ADMM, ρ = 3": (ISOTROPIC, 3.0, None),
    "BayesADMM, full, ρ = ½": (FULL, 0.5, None),
    "BayesADMM, diagonal, ρ = 1": (DIAGONAL, 1.0, None),
    "PVI, full": (FULL, 1.0, 1.0),
}

if __name__ == "__main__":
    np.set_printoptions(precision=3, suppress=True, floatmode="fixed")
    print("Hospital 1's dual η_1, and its negative natural gradient −∇L_1(μ_1), after rounds 1, 2, 3: v_1, then V_1")
    for name, (family, ρ, α) in METHODS.items():
        for number, (_, λ, η, _) in enumerate(run(family, ρ, α, rounds=3), start=1):
            pair = η[0], -natural_gradient(λ[0], X[0], y[0], family)
            print(f"{name:26} {number} ", *(f"{a.T[family.T > 0]!s:43}" for a in pair))
    λ_1 = run(FULL, 0.5, rounds=1)[0][1][0]  # BayesADMM, full, round 1: the natural gradient from its definition
    slope, F = along_λ(lambda λ: expected_loss(λ, X[0], y[0], FULL), λ_1), along_λ(expectation, λ_1).reshape(6, 6)
    for text, a in ("−∇_λ L_1", slope), ("−F⁻¹ ∇_λ L_1", np.linalg.pinv(F) @ slope):  # pinv: T lists θ_1θ_2 twice
        print(f"{text + ' of the fourth line (Eq. 11)':73}", -a.reshape(d, 1 + d).ravel("F"))
    print(f"\n{'At the end':24}rounds {'mean':16} {'sd':16}μ_k=μ_g η_k=−∇L* λ_g=Ση_k  μ_g=∇A  pooled  * in all rounds")
    for name, (family, ρ, α) in METHODS.items():
        history, best = run(family, ρ, α), moments(pooled(family))
        (m, covariance), edges = moments(history[-1][0]), np.array([edges for *_, edges in history])
        gap = max(abs(m - best[0]).max(), abs(covariance - best[1]).max())
        sd = "none" if family is ISOTROPIC else np.sqrt(np.diag(covariance))
        sizes = (f"{size:8.0e}" for size in (edges[-1, 0], edges[:, 1].max(), *edges[-1, 2:], gap))
        print(f"{name:26} {len(history)}  {m}  {sd!s:14}", *sizes)
