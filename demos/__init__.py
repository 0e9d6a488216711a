"""Demonstrations, installed as ``bayesadmm_np.demos``.

``duality_in_numpy`` is the whole algorithm in one file, without the library: ``python demos/duality_in_numpy.py``.
``hospitals`` has CSV files to try the commands with. ``shared``, ``style`` and ``tabular`` serve the other modules,
each of which is a script that draws one figure: ``python demos/fig5a_ridge.py --help`` lists its options. ``bayesadmm
reproduce`` runs the scripts of the paper's figures.
"""
