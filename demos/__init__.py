"""Demonstrations, installed as ``bayesadmm_np.demos``.

Each module reproduces one figure of the paper and has the same three functions: ``compute`` returns a frozen result
made of numbers, ``draw`` turns a result into a figure, ``claims`` says what the figure is meant to show, whether it
does, and what was measured. ``reproduce`` runs them all.
"""
