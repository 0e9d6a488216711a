"""Demonstrations, installed as ``bayesadmm_np.demos``.

Each module but ``shared``, ``style``, ``tabular``, ``reproduce`` and ``hospitals`` is a script that draws one figure:
run ``python demos/fig5a_ridge.py --help``. ``reproduce`` runs them all. ``hospitals`` has CSV files to try the commands
with.
"""
