"""Demonstrations, installed as ``bayesadmm_np.demos``."""
