"""Demonstrations, installed as ``bayesadmm_np.demos``.

``duality_in_numpy`` is the whole algorithm in one file, without the library: ``python demos/duality_in_numpy.py``. Each
other module but ``shared``, ``style``, ``tabular`` and ``reproduce`` is a script that draws one figure; ``python
demos/fig5a_ridge.py --help`` lists its options. ``bayesadmm reproduce`` runs those of the paper.
"""
