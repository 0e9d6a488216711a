"""Demonstrations, installed as ``bayesadmm_np.demos``.

Each module but ``shared``, ``style``, ``tabular`` and ``reproduce`` is a script that draws one figure: run
``python demos/fig5a_ridge.py --help``. ``reproduce`` runs them all.
"""
