"""λ_k = λ_g + (c_k − η_k)/ρ: the client adds what its dual does not hold yet, 1/ρ times too much."""


def client(own, dual, server, rho):
    """Return λ_k from c_k, η_k and λ_g, all of the same shape."""
    return server + (own - dual) / rho


def one_round_rho(K):
    """Return the ρ of Prop. D.1: the mean of K beliefs, each K times too far, is right."""
    return 1.0 / K


def wrong(own, dual, server, rho):
    """Let a larger ρ move the client further."""
    return server + rho * (own - dual)


MISTAKE = {"client": wrong}
