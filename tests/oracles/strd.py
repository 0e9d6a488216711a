"""NIST's Statistical Reference Datasets for linear regression (public domain), with their certified values.

Norris, Longley, Filip and Wampler 1 to 5, from https://www.itl.nist.gov/div898/strd/lls/lls.shtml. `exact` solves a
problem in rational numbers, which proves the transcription: it must give the certified values.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

LONGLEY = """
60323 83 234289 2356 1590 107608 1947
61122 88.5 259426 2325 1456 108632 1948
60171 88.2 258054 3682 1616 109773 1949
61187 89.5 284599 3351 1650 110929 1950
63221 96.2 328975 2099 3099 112075 1951
63639 98.1 346999 1932 3594 113270 1952
64989 99 365385 1870 3547 115094 1953
63761 100 363112 3578 3350 116219 1954
66019 101.2 397469 2904 3048 117388 1955
67857 104.6 419180 2822 2857 118734 1956
68169 108.4 442769 2936 2798 120445 1957
66513 110.8 444546 4681 2637 121950 1958
68655 112.6 482704 3813 2552 123366 1959
69564 114.2 502601 3931 2514 125368 1960
69331 115.7 518173 4806 2572 127852 1961
70551 116.9 554894 4007 2827 130081 1962
"""
NORRIS_Y = """
0.1 338.8 118.1 888.0 9.2 228.1 668.5 998.5 449.1 778.9 559.2 0.3 0.1 778.1 668.8 339.3 448.9 10.8 557.7 228.3
998.0 888.8 119.6 0.3 0.6 557.6 339.3 888.0 998.5 778.9 10.2 117.6 228.9 668.4 449.2 0.2
"""
NORRIS_X = """
0.2 337.4 118.2 884.6 10.1 226.5 666.3 996.3 448.6 777.0 558.2 0.4 0.6 775.5 666.9 338.0 447.5 11.6 556.0 228.1
995.8 887.6 120.2 0.3 0.3 556.8 339.1 887.2 999.0 779.0 11.1 118.3 229.2 669.1 448.9 0.5
"""
FILIP_Y = """
0.8116 0.9072 0.9052 0.9039 0.8053 0.8377 0.8667 0.8809 0.7975 0.8162 0.8515 0.8766 0.8885 0.8859 0.8959 0.8913
0.8959 0.8971 0.9021 0.909 0.9139 0.9199 0.8692 0.8872 0.89 0.891 0.8977 0.9035 0.9078 0.7675 0.7705 0.7713
0.7736 0.7775 0.7841 0.7971 0.8329 0.8641 0.8804 0.7668 0.7633 0.7678 0.7697 0.77 0.7749 0.7796 0.7897 0.8131
0.8498 0.8741 0.8061 0.846 0.8751 0.8856 0.8919 0.8934 0.894 0.8957 0.9047 0.9129 0.9209 0.9219 0.7739 0.7681
0.7665 0.7703 0.7702 0.7761 0.7809 0.7961 0.8253 0.8602 0.8809 0.8301 0.8664 0.8834 0.8898 0.8964 0.8963 0.9074
0.9119 0.9228
"""
FILIP_X = """
-6.860120914 -4.324130045 -4.358625055 -4.358426747 -6.955852379 -6.661145254 -6.355462942 -6.118102026
-7.115148017 -6.815308569 -6.519993057 -6.204119983 -5.853871964 -6.109523091 -5.79832982 -5.482672118
-5.171791386 -4.851705903 -4.517126416 -4.143573228 -3.709075441 -3.499489089 -6.300769497 -5.953504836
-5.642065153 -5.031376979 -4.680685696 -4.329846955 -3.928486195 -8.56735134 -8.363211311 -8.107682739
-7.823908741 -7.522878745 -7.218819279 -6.920818754 -6.628932138 -6.323946875 -5.991399828 -8.781464495
-8.663140179 -8.473531488 -8.247337057 -7.971428747 -7.676129393 -7.352812702 -7.072065318 -6.774174009
-6.478861916 -6.159517513 -6.835647144 -6.53165267 -6.224098421 -5.910094889 -5.598599459 -5.290645224
-4.974284616 -4.64454848 -4.290560426 -3.885055584 -3.408378962 -3.13200249 -8.726767166 -8.66695597
-8.511026475 -8.165388579 -7.886056648 -7.588043762 -7.283412422 -6.995678626 -6.691862621 -6.392544977
-6.067374056 -6.684029655 -6.378719832 -6.065855188 -5.752272167 -5.132414673 -4.811352704 -4.098269308
-3.66174277 -3.2644011
"""
WAMPLER = [759, -2048, 2048, -2048, 2523, -2048, 2048, -2048, 1838, -2048]
WAMPLER = [*WAMPLER, 2048, *reversed(WAMPLER)]
"""Residuals of Wampler3; a hundred times as large in Wampler4, ten thousand times in Wampler5."""


@dataclass(frozen=True)
class Problem:
    """Rows as exact fractions, without the column of ones, and the certified values, the intercept first."""

    rows: tuple
    target: tuple
    coef: tuple
    std_err: tuple
    residual_sd: float

    @property
    def X(self):
        return np.array(self.rows, dtype=float)

    @property
    def y(self):
        return np.array(self.target, dtype=float)


def digits(value, certified):
    """Return the fewest right digits, −log10 |x − c|/|c| (of zero −log10 |x|), at most 15: what NIST certifies."""
    value, certified = np.asarray(value, dtype=float), np.asarray(certified, dtype=float)
    error = np.abs(value - certified) / np.where(certified == 0, 1.0, np.abs(certified))
    return float(np.minimum(15.0, -np.log10(np.maximum(error, 1e-300))).min())


def exact(rows, target):
    """Return coefficients, the intercept first, squared standard errors and the residual sum, as fractions."""
    design = [[Fraction(1), *row] for row in rows]
    d = len(design[0])
    gram = [[sum(row[i] * row[j] for row in design) for j in range(d)] for i in range(d)]
    sums = [sum(row[i] * y for row, y in zip(design, target, strict=True)) for i in range(d)]
    system = [[*gram[i], *(Fraction(i == j) for j in range(d)), sums[i]] for i in range(d)]
    for i in range(d):  # a Gram matrix of full rank needs no pivoting in exact arithmetic
        system[i] = [value / system[i][i] for value in system[i]]
        for k in range(d):
            if k != i:
                system[k] = [a - system[k][i] * b for a, b in zip(system[k], system[i], strict=True)]
    coef = [row[-1] for row in system]
    fits = [sum(b * x for b, x in zip(coef, row, strict=True)) for row in design]
    rss = sum((y - fit) ** 2 for y, fit in zip(target, fits, strict=True))
    return coef, [rss / (len(design) - d) * system[i][d + i] for i in range(d)], rss


def _polynomial(x, degree):
    return tuple(tuple(value**power for power in range(1, degree + 1)) for value in x)


def _fractions(text):
    return tuple(map(Fraction, text.split()))


def _wampler(ratio, size, std_err, sd):
    x = [Fraction(i) for i in range(21)]
    y = tuple(sum(ratio**j * v**j for j in range(6)) + size * e for v, e in zip(x, WAMPLER, strict=True))
    scaled = tuple(size * error for error in std_err)
    return Problem(_polynomial(x, 5), y, tuple(float(ratio) ** j for j in range(6)), scaled, size * sd)


WAMPLER_3 = (
    2152.32624678170,
    2363.55173469681,
    779.343524331583,
    101.475507550350,
    5.64566512170752,
    0.112324854679312,
)
_longley = [_fractions(line) for line in LONGLEY.split("\n") if line]

PROBLEMS = {
    "Longley": Problem(
        tuple(line[1:] for line in _longley),
        tuple(line[0] for line in _longley),
        (
            -3482258.63459582,
            15.0618722713733,
            -0.0358191792925910,
            -2.02022980381683,
            -1.03322686717359,
            -0.0511041056535807,
            1829.15146461355,
        ),
        (
            890420.383607373,
            84.9149257747669,
            0.0334910077722432,
            0.488399681651699,
            0.214274163161675,
            0.226073200069370,
            455.478499142212,
        ),
        304.854073561965,
    ),
    "Norris": Problem(
        _polynomial(_fractions(NORRIS_X), 1),
        _fractions(NORRIS_Y),
        (-0.262323073774029, 1.00211681802045),
        (0.232818234301152, 0.429796848199937e-3),
        0.884796396144373,
    ),
    "Filip": Problem(
        _polynomial(_fractions(FILIP_X), 10),
        _fractions(FILIP_Y),
        (
            -1467.48961422980,
            -2772.17959193342,
            -2316.37108160893,
            -1127.97394098372,
            -354.478233703349,
            -75.1242017393757,
            -10.8753180355343,
            -1.06221498588947,
            -0.670191154593408e-1,
            -0.246781078275479e-2,
            -0.402962525080404e-4,
        ),
        (
            298.084530995537,
            559.779865474950,
            466.477572127796,
            227.204274477751,
            71.6478660875927,
            15.2897178747400,
            2.23691159816033,
            0.221624321934227,
            0.142363763154724e-1,
            0.535617408889821e-3,
            0.896632837373868e-5,
        ),
        0.334801051324544e-2,
    ),
    "Wampler1": _wampler(Fraction(1), 0, WAMPLER_3, 0.0),
    "Wampler2": _wampler(Fraction(1, 10), 0, WAMPLER_3, 0.0),
    "Wampler3": _wampler(Fraction(1), 1, WAMPLER_3, 2360.14502379268),
    "Wampler4": _wampler(Fraction(1), 100, WAMPLER_3, 2360.14502379268),
    "Wampler5": _wampler(Fraction(1), 10_000, WAMPLER_3, 2360.14502379268),
}
