"""The expected softplus and its derivatives, against an mpmath table and against each other.

Tolerances. With L = |log of the reference|, rounding the exponent alone costs (1 + L) ulp, so that
errors are stated in units of EPS·(1 + L). The worst measured over the table is 5.1 for the
softplus, 1.5 for the sigmoid, 1.9 for the slope, 5.5 for the skew and 18 for the jerk, the last
two relative to slope/max(1, s) and slope/max(1, v) where the value itself is smaller, because
both change sign; the limits below are about twice that.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit

from bayesadmm_np.losses.logistic_normal import logistic_normal_moments

EPS = np.finfo(float).eps
TINY = np.finfo(float).tiny
LIMITS = np.array([10, 4, 4, 12, 36])  # in EPS·(1 + L), one for each quantity

SIGMAS = (0, 1e-8, 0.1, 0.5, 1, 2, 4, 4.000001, 8, 20, 100, 1000)
MEANS = (0, -0.3, -3, -10, -40, -200, -1000)
# Either side of every place where the rule changes: in sigma, and at m = −v/2.
SEAMS = (
    *((m, s) for s in (0.5000001, 1.000001, 2.000001) for m in (-0.3, -3)),
    *((-0.49 * s * s, s) for s in (1.5, 2.5, 8, 30)),
    *((-0.51 * s * s, s) for s in (1.5, 2.5, 8, 30)),
    *((-s * s, s) for s in (2.5, 6, 12)),
)
CASES = tuple((m, s) for s in SIGMAS for m in MEANS) + SEAMS


def reference_integrands(f):
    from mpmath import mp

    e = mp.exp(-abs(f))
    small, large = e / (1 + e), 1 / (1 + e)
    sigmoid, slope = (large if f >= 0 else small), small * large
    return (
        max(f, mp.zero) + mp.log1p(e),
        sigmoid,
        slope,
        slope * (1 - 2 * sigmoid),
        slope * (1 - 6 * slope),
    )


def reference(mean, sigma):
    """Return the five expectations by mpmath at 30 digits, split where the integrand bends."""
    from mpmath import mp

    with mp.workdps(34):
        m, v = mp.mpf(mean), mp.mpf(sigma * sigma)  # the float64 variance that the code is given
        if v == 0:
            return [float(h) for h in reference_integrands(m)]
        s = mp.sqrt(v)
        low, high = m - 14 * s, m + v + 14 * s
        bends = [c + k * s for c in (m, m + v) for k in (-14, -9, -5, -2, 0, 2, 5, 9, 14)]
        bends += [sign * x for sign in (-1, 1) for x in (0, 1, 3, 6, 12, 24, 48, 96)]
        points = sorted({mp.mpf(b) for b in bends if low <= b <= high})
        seen = {}

        def integrand(f, k):
            if f not in seen:
                density = mp.exp(-((f - m) ** 2) / (2 * v)) / (s * mp.sqrt(2 * mp.pi))
                seen[f] = [density * h for h in reference_integrands(f)]
            return seen[f][k]

        # mp.quad stops at an absolute error, so the integrands are scaled to a peak near one.
        peak = max(integrand(p, 0) for p in points)
        values = [mp.quad(lambda f, k=k: integrand(f, k) / peak, points, method="gauss-legendre") for k in range(5)]
        if mean == 0:
            values[3] = mp.zero  # by symmetry; the quadrature leaves 1e-35
        return [float(value * peak) for value in values]


# One case to two lines: mean, sigma, softplus, sigmoid / slope, skew, jerk. Written by
# `print_table`; test_table_is_what_mpmath_says recomputes it.
TABLE_TEXT = """
0 0 0.69314718055994529 0.5
    0.25 0 -0.125
-0.29999999999999999 0 0.55435524446852713 0.42555748318834102
    0.24445831169074586 0.036396183955576242 -0.11410088523739328
-3 0 0.048587351573742062 0.047425873177566781
    0.04517665973091213 0.04089157466094348 0.032931076224256423
-10 0 4.5398899216864647e-05 4.5397868702434395e-05
    4.5395807735951673e-05 4.5391685990113197e-05 4.5383443059791677e-05
-40 0 4.2483542552915889e-18 4.2483542552915889e-18
    4.2483542552915889e-18 4.2483542552915889e-18 4.2483542552915889e-18
-200 0 1.3838965267367376e-87 1.3838965267367376e-87
    1.3838965267367376e-87 1.3838965267367376e-87 1.3838965267367376e-87
-1000 0 0 0
    0 0 0
0 1e-08 0.69314718055994529 0.5
    0.25 0 -0.12499999999999999
-0.29999999999999999 1e-08 0.55435524446852713 0.42555748318834102
    0.24445831169074586 0.036396183955576242 -0.11410088523739327
-3 1e-08 0.048587351573742062 0.047425873177566781
    0.045176659730912137 0.04089157466094348 0.032931076224256423
-10 1e-08 4.5398899216864647e-05 4.5397868702434395e-05
    4.5395807735951673e-05 4.5391685990113197e-05 4.5383443059791677e-05
-40 1e-08 4.2483542552915889e-18 4.2483542552915889e-18
    4.2483542552915889e-18 4.2483542552915889e-18 4.2483542552915889e-18
-200 1e-08 1.3838965267367376e-87 1.3838965267367376e-87
    1.3838965267367376e-87 1.3838965267367376e-87 1.3838965267367376e-87
-1000 1e-08 0 0
    0 0 0
0 0.10000000000000001 0.69439562324080939 0.5
    0.24937810306418609 0 -0.1237631220060805
-0.29999999999999999 0.10000000000000001 0.55557611401167006 0.42573859035667588
    0.24389035089934175 0.036047853105658889 -0.1130864769577527
-3 0.10000000000000001 0.048813646404922945 0.04763056426042668
    0.045341251150253607 0.04098469138952554 0.03290516695115081
-10 0.10000000000000001 4.5626446494217473e-05 4.5625395163625778e-05
    4.5623292567691048e-05 4.5619087571560658e-05 4.5610678166489503e-05
-40 0.10000000000000001 4.2696492196143631e-18 4.2696492196143631e-18
    4.2696492196143631e-18 4.2696492196143631e-18 4.2696492196143631e-18
-200 0.10000000000000001 1.3908333369442581e-87 1.3908333369442581e-87
    1.3908333369442581e-87 1.3908333369442581e-87 1.3908333369442581e-87
-1000 0.10000000000000001 0 0
    0 0 0
0 0.5 0.72349280106597602 0.5
    0.23604442243987966 0 -0.10016367711737349
-0.29999999999999999 0.5 0.58408115477507017 0.42963421638185156
    0.23159013793029309 0.029344679892504236 -0.093185542794788231
-3 0.5 0.054489316485381786 0.052669953981110684
    0.049229768854325472 0.042900668099853288 0.031735743856705648
-10 0.5 5.1443161141863046e-05 5.1441462200086477e-05
    5.1438064508642979e-05 5.1431269702037859e-05 5.1417681817484964e-05
-40 0.5 4.8140160524635333e-18 4.8140160524635333e-18
    4.8140160524635333e-18 4.8140160524635325e-18 4.8140160524635325e-18
-200 0.5 1.5681602084762881e-87 1.5681602084762881e-87
    1.5681602084762881e-87 1.5681602084762881e-87 1.5681602084762881e-87
-1000 0.5 0 0
    0 0 0
0 1 0.80605918334743976 0.5
    0.20662096414190703 0 -0.062396483959259195
-0.29999999999999999 1 0.6653361329063201 0.43829319654075793
    0.20383472706591851 0.018431702273146378 -0.05954039982352477
-3 1 0.075025980999293598 0.069323858004285768
    0.05982186407841316 0.045040818038768055 0.024250010569318602
-10 1 7.4844217702493704e-05 7.4836608318806663e-05
    7.4821395148201209e-05 7.4790985578542844e-05 7.4730216679108288e-05
-40 1 7.0043520261686453e-18 7.0043520261686453e-18
    7.0043520261686453e-18 7.0043520261686453e-18 7.0043520261686438e-18
-200 1 2.2816596400788878e-87 2.2816596400788878e-87
    2.2816596400788878e-87 2.2816596400788878e-87 2.2816596400788878e-87
-1000 1 0 0
    0 0 0
0 2 1.0677143880513833 0.5
    0.15142637740053971 0 -0.022724711017560885
-0.29999999999999999 2 0.92452091626992938 0.45467413156399122
    0.15040736981324632 0.0067694131656833578 -0.022245880953782708
-3 2 0.1820085406029025 0.12959420093457716
    0.077907788070787048 0.033950920808302559 0.0042428974424861734
-10 2 0.00033293445705515306 0.00033069963297844261
    0.00032662724676900282 0.00031937744596344589 0.00030683339046839482
-40 2 3.1391327920480271e-17 3.139132792048024e-17
    3.1391327920480191e-17 3.139132792048008e-17 3.1391327920479865e-17
-200 2 1.0225689071173033e-86 1.0225689071173033e-86
    1.0225689071173033e-86 1.0225689071173033e-86 1.0225689071173033e-86
-1000 2 0 0
    0 0 0
0 4 1.7498067467927865 0.5
    0.09118469143576502 0 -0.0047967247736883231
-0.29999999999999999 4 1.6039084397852745 0.47266616238317133
    0.090969096221693857 0.0014355867969428871 -0.0047624459063103893
-3 4 0.64468976046598447 0.24657002595057495
    0.07198094359542398 0.011336963287650968 -0.0019781878268511754
-10 4 0.017984884310758391 0.011585439888428382
    0.0067795392140408296 0.0034780291572393237 0.0014563758012040577
-40 4 1.2664164855933627e-14 1.2664164172811375e-14
    1.2664162820969215e-14 1.2664160151855231e-14 1.2664154895871864e-14
-200 4 4.1253374046151847e-84 4.1253374046151847e-84
    4.1253374046151847e-84 4.1253374046151847e-84 4.1253374046151847e-84
-1000 4 0 0
    0 0 0
0 4.0000010000000001 1.7498071115315594 0.5
    0.091184672248869628 0 -0.0047967217205685695
-0.29999999999999999 4.0000010000000001 1.6039088036616667 0.47266616812551743
    0.090969077171913895 0.0014355858846712313 -0.0047624428897919714
-3 4.0000010000000001 0.64469004838977895 0.24657007129842168
    0.071980935682672248 0.011336957237252273 -0.0019781875456539861
-10 4.0000010000000001 0.017984911428930286 0.011585453800549981
    0.0067795450395446537 0.0034780307723523089 0.0014563757467016046
-40 4.0000010000000001 1.2664215512692552e-14 1.2664214829559623e-14
    1.2664213477696439e-14 1.2664210808541184e-14 1.2664205552477082e-14
-200 4.0000010000000001 4.1253539059998668e-84 4.1253539059998668e-84
    4.1253539059998668e-84 4.1253539059998668e-84 4.1253539059998668e-84
-1000 4.0000010000000001 0 0
    0 0 0
0 8 3.2721584918093019 0.5
    0.048650180134068577 0 -0.00072396847626880431
-0.29999999999999999 8 3.1243475056087222 0.48540820316298694
    0.04861761246753412 0.00021704502717969216 -0.00072251364457455772
-3 8 1.9886732725823388 0.35724284633020065
    0.045499094835704489 0.0020311154062275264 -0.00058629101790975892
-10 8 0.4425910737139877 0.11136944115694231
    0.023123206534197478 0.0034387893313730846 0.00016797100744624864
-40 8 9.2019598176595064e-07 5.7998663439840837e-07
    3.5349942825550873e-07 2.0757826230889357e-07 1.1689142832854161e-07
-200 8 1.0927656633766312e-73 1.0927656633766312e-73
    1.0927656633766312e-73 1.0927656633766312e-73 1.0927656633766312e-73
-1000 8 0 0
    0 0 0
0 20 8.0115635706100718 0.5
    0.019865784142370831 0 -4.926126317260559e-05
-0.29999999999999999 20 7.8624575142711741 0.49404048642555221
    0.019863567509206946 1.4776729930684289e-05 -4.9244773575014699e-05
-3 20 6.6007937127998639 0.44062358312372968
    0.019645340705017535 0.00014614384370621126 -4.7627406200415978e-05
-10 20 3.9848251810502431 0.30925578045947166
    0.017549296527417303 0.00043516919251252611 -3.272576540151365e-05
-40 20 0.17429281259862361 0.023195438557416286
    0.0027326920195520962 0.00027103657143916221 2.0107015938608414e-05
-200 20 2.3657139672986749e-23 1.1941917356355699e-23
    5.9709586781778496e-24 2.9563272907091933e-24 1.4490115969748655e-24
-1000 20 0 0
    0 0 0
0 100 39.900789622233567 0.5
    0.0039887667968355805 0 -3.9874552353804979e-07
-0.29999999999999999 100 39.75096911660485 0.49880337175530176
    0.0039887488533273804 1.1962311893314787e-07 -3.9874014226344839e-07
-3 100 38.418737727174253 0.48803549372221683
    0.0039869728455162543 1.1956985621578718e-06 -3.9820759575046344e-07
-10 100 35.100061984048416 0.46017869008377466
    0.0039688792645484073 3.9675742415306382e-06 -3.9279115433400332e-07
-40 100 23.049940909967685 0.34460248167363888
    0.0036821926917715809 1.4723927693519195e-05 -3.0922184494328821e-07
-200 100 0.84995868421824383 0.022767896307537172
    0.00054017604872934192 1.0799967694431185e-05 1.6192848252710727e-07
-1000 100 7.6025885556649744e-23 7.7478515802205806e-24
    7.8212874646797721e-25 7.8186986654901028e-26 7.7379240807967005e-27
0 1000 398.94293663442477 0.5
    0.00039894162416995182 0 -3.989403117115237e-10
-0.29999999999999999 1000 398.79295458679775 0.49988031751454426
    0.0003989416062176382 1.1968208812778075e-10 -3.9894025785476084e-10
-3 1000 397.44473187038716 0.49880317692271914
    0.00039893982894258836 1.1968155494701989e-09 -3.9893492605522992e-10
-10 1000 393.96288354940981 0.49601065024735508
    0.00039892167765303167 3.9892036526022454e-09 -3.9888047335493723e-10
-40 1000 379.26204738693508 0.48404658937543749
    0.00039862259954702645 1.5944851525525618e-08 -3.9798349617536395e-10
-200 1000 306.89527910201434 0.42074041920834832
    0.00039104207646763032 7.8208157999500368e-08 -3.753992098561699e-10
-1000 1000 83.315868613574239 0.15865565195642839
    0.00024197072451822673 2.4196992847011731e-07 -7.9604444301089265e-16
-0.29999999999999999 0.50000009999999995 0.58408116635457819 0.42963421784908568
    0.23159013327101566 0.029344677621063932 -0.093185535940332451
-3 0.50000009999999995 0.054489318946870514 0.052669956126144321
    0.049229770441112805 0.042900668765757724 0.031735743170222722
-0.29999999999999999 1.0000009999999999 0.66533633674111925 0.43829321497246004
    0.2038346675255184 0.018431683503664913 -0.059540340841601237
-3 1.0000009999999999 0.075026040821199708 0.069323903045126006
    0.059821888328424742 0.045040817407868652 0.024249988348967078
-0.29999999999999999 2.0000010000000001 0.9245212170846997 0.45467414510281456
    0.15040732532149392 0.0067694068202518668 -0.02224586032005714
-3 2.0000010000000001 0.1820086964185261 0.1295942688364195
    0.077907796556572054 0.033950904546184955 0.0042428854355221392
-1.1025 1.5 0.47898236007608669 0.31312602596185612
    0.15562628278706608 0.035715808794115858 -0.023540519642567127
-3.0625 2.5 0.26118869134480949 0.15820601955764932
    0.078313714478748783 0.026137893965869335 0.00045892136322413213
-31.359999999999999 8 0.00013053856086091094 6.7439834142995117e-05
    3.3126995558464654e-05 1.5345852733250009e-05 6.628100288147301e-06
-441 30 1.0073702795727196e-48 4.9595863402658992e-49
    2.4307297985078027e-49 1.1858671302155045e-49 5.7585863718598933e-50
-1.1475 1.5 0.46504871409673426 0.30615935928163762
    0.15399556874678372 0.036752954447737234 -0.022551711410807779
-3.1875 2.5 0.24201626245542027 0.14862080138817998
    0.075051875009398569 0.026037227656588311 0.0011457426063323202
-32.640000000000001 8 6.6661008340999269e-05 3.5560513622321024e-05
    1.8092899833034903e-05 8.7170379304718142e-06 3.9379808468941428e-06
-459 30 1.1953616414466906e-52 6.120615786031866e-53
    3.1208569038168463e-53 1.5845743237291098e-53 8.0110202980120408e-54
-6.25 2.5 0.027234619230536192 0.02196846681170371
    0.016209429527675193 0.01045039224364668 0.0053286858581032756
-36 6 8.5621729182991886e-09 7.6149898723563146e-09
    6.6447134034716627e-09 5.6744369345870108e-09 4.7289499081672549e-09
-144 12 2.8657850188120367e-32 2.6900930800105691e-32
    2.5132236500011314e-32 2.3363542199916936e-32 2.1606859642375606e-32
"""
TABLE = np.array(TABLE_TEXT.split(), dtype=float).reshape(-1, 7)


def print_table():
    for mean, sigma in CASES:
        values = [format(x, ".17g") for x in (mean, sigma, *reference(mean, sigma))]
        print(*values[:4])
        print("   ", *values[4:])


def errors(moments, mean, sigma, expected):
    """Return the errors of the five moments in units of EPS·(1 + L); arrays of shape (5, n)."""
    scale = np.abs(expected)
    scale[0] = np.maximum(scale[0], np.maximum(mean, 0))
    scale[3] = np.maximum(scale[3], scale[2] / np.maximum(1, sigma))
    scale[4] = np.maximum(scale[4], scale[2] / np.maximum(1, sigma**2))
    unit = EPS * (scale * (1 + np.abs(np.log(np.maximum(scale, TINY)))))
    # Below TINY float64 itself has only absolute accuracy.
    return np.abs(moments - expected) / np.maximum(unit, EPS * TINY)


def check_against_table(moments_of, keep):
    mean, sigma, *expected = TABLE[keep].T
    expected = np.array(expected)
    worst = errors(np.array(moments_of(mean, sigma**2)), mean, sigma, expected).max(axis=1)
    assert (worst <= LIMITS).all(), worst


def order_4(mean, variance):
    return logistic_normal_moments(mean, variance, order=4)


def mirrored(mean, variance):
    """Compute the moments at `mean` from those at −mean."""
    softplus, sigmoid, slope, skew, jerk = order_4(-mean, variance)
    return softplus + mean, 1 - sigmoid, slope, -skew, jerk


def gauss_hermite_32(mean, variance):
    z, weights = np.polynomial.hermite_e.hermegauss(32)
    weights = weights / weights.sum()
    f = mean[:, None] + np.sqrt(variance)[:, None] * z
    p, slope = expit(f), expit(f) * expit(-f)
    values = np.logaddexp(0, f), p, slope, slope * (1 - 2 * p), slope * (1 - 6 * slope)
    return [h @ weights for h in values]


def test_table_covers_every_case():
    assert_array_equal(TABLE[:, :2], CASES)


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]:g}-{row[1]:g}")
def test_table_is_what_mpmath_says(row):
    mean, sigma, *expected = row
    assert_allclose(reference(mean, sigma), expected, rtol=2 * EPS)


@pytest.mark.parametrize("sigma", np.unique(TABLE[:, 1]))
def test_matches_table(sigma):
    check_against_table(order_4, TABLE[:, 1] == sigma)


@pytest.mark.parametrize("sigma", np.unique(TABLE[:, 1]))
def test_matches_table_at_positive_means(sigma):
    mean, sigma, *left = TABLE[TABLE[:, 1] == sigma].T
    softplus, sigmoid, slope, skew, jerk = left
    expected = np.array([softplus - mean, 1 - sigmoid, slope, -skew, jerk])
    got = np.array(order_4(-mean, sigma**2))
    assert (errors(got, -mean, sigma, expected).max(axis=1) <= LIMITS).all()


@pytest.mark.parametrize("sigma", [4, 4.000001, 8, 20, 100, 1000])
def test_gauss_hermite_fails_the_table(sigma):
    """The table tells a rule that is not exact from one that is."""
    with pytest.raises(AssertionError):
        check_against_table(gauss_hermite_32, TABLE[:, 1] == sigma)


def test_gauss_hermite_passes_where_it_is_exact():
    """So that the failures above are those of the rule and not of its code."""
    check_against_table(gauss_hermite_32, (TABLE[:, 1] == 0.1) & (TABLE[:, 0] >= -10))


def test_point_mass_gives_the_functions_themselves():
    f = np.array([-700.0, -40, -3, -1e-9, 0, 1e-9, 3, 40, 700])
    softplus, sigmoid, slope, skew, jerk = order_4(f, 0)
    p, q = expit(f), expit(-f)
    assert_allclose(softplus, np.logaddexp(0, f), rtol=1e-15)
    assert_allclose(sigmoid, p, rtol=1e-15)
    assert_allclose(slope, p * q, rtol=1e-15)
    assert_allclose(skew, p * q * (q - p), rtol=1e-15, atol=1e-16)
    assert_allclose(jerk, p * q * (1 - 6 * p * q), rtol=4e-15)


moments_at = st.tuples(st.floats(-60, 60), st.floats(0, 40))


@given(moments_at)
def test_reflection(case):
    mean, sigma = case
    right, left = order_4(mean, sigma**2), order_4(-mean, sigma**2)
    assert_allclose(right.softplus - left.softplus, mean, rtol=1e-15, atol=4e-15 * (1 + sigma))
    assert_allclose(right.sigmoid + left.sigmoid, 1, rtol=2e-15)
    assert right.slope == left.slope
    assert right.skew == -left.skew
    assert right.jerk == left.jerk


@given(moments_at)
def test_each_moment_is_the_derivative_of_the_one_before(case):
    mean, sigma = case
    step = 1e-3 * max(1, sigma)
    ahead, behind = (np.array(order_4(mean + h, sigma**2)) for h in (step, -step))
    far_ahead, far_behind = (np.array(order_4(mean + h, sigma**2)) for h in (2 * step, -2 * step))
    slopes = (8 * (ahead - behind) - (far_ahead - far_behind)) / (12 * step)
    here = np.array(order_4(mean, sigma**2))
    assert_allclose(slopes[:-1], here[1:], rtol=1e-9, atol=1e-10)


@given(moments_at)
def test_variance_derivatives(case):
    """The heat equation: the derivative of E h in v is half that of E h'' in m."""
    mean, sigma = case
    v = sigma**2 + 0.1
    h = 1e-3 * v
    at = {k: np.array(order_4(mean, v + k * h)) for k in (-2, -1, 0, 1, 2)}
    slopes = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * h)
    assert_allclose(slopes[:3], at[0][2:] / 2, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_rules_meet_in_sigma(sigma):
    mean = np.linspace(-60, 60, 241)
    below, above = order_4(mean, sigma**2), order_4(mean, np.nextafter(sigma, 3) ** 2)
    for a, b in zip(below[:3], above[:3], strict=True):
        assert_allclose(a, b, rtol=3e-14)


@pytest.mark.parametrize("sigma", [2.1, 3, 6, 12, 30])
def test_rules_meet_in_mean(sigma):
    seam = -(sigma**2) / 2
    direct, tilted = (order_4(m, sigma**2) for m in (seam, np.nextafter(seam, -np.inf)))
    assert_allclose(direct, tilted, rtol=1e-13)


@pytest.mark.parametrize("sigma", [0, 1e-8, 1, 2, 4, 30, 1e3])
@pytest.mark.parametrize("mean", [1e3, 1e20, 1e300])
def test_far_margins(mean, sigma):
    """Warnings are errors in this suite, so that none is given either."""
    with np.errstate(all="raise"):
        right, left = order_4(mean, sigma**2), order_4(-mean, sigma**2)
    if mean > 1e3 or sigma < 100:
        assert right[:3] == (mean, 1.0, left.slope)
    if mean > 1e3:
        assert_array_equal(left, 0)
        assert_array_equal(right[2:], 0)


@pytest.mark.parametrize("variance", [1e12, 1e100, 1e308])
@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.0])
def test_huge_variance_is_a_probit(variance, ratio):
    """Softplus is max(f, 0) on that scale."""
    from scipy.special import ndtr

    sigma = np.sqrt(variance)
    density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
    with np.errstate(all="raise", under="ignore"):
        moments = order_4(ratio * sigma, variance)
    assert_allclose(moments.softplus, sigma * (ratio * ndtr(ratio) + density), rtol=1e-11)
    assert_allclose(moments.sigmoid, ndtr(ratio), rtol=1e-11)
    assert_allclose(moments.slope, density / sigma, rtol=1e-11)
    assert_allclose(moments.skew * sigma, -ratio * density / sigma, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("sign", [-1, 1])
def test_largest_floats_give_finite_moments(sign):
    largest = np.finfo(float).max
    with np.errstate(all="raise"):
        moments = order_4(sign * largest, [0.0, 5e-324, 1.0, 1e6, largest])
    assert np.isfinite(moments).all()


def test_broadcasts_and_keeps_the_shape():
    mean, variance = np.linspace(-3, 3, 5)[:, None], np.array([0.0, 0.2, 0.9, 3, 30])
    together = order_4(mean, variance)
    assert together.slope.shape == (5, 5)
    for i, j in np.ndindex(5, 5):
        alone = order_4(mean[i, 0], variance[j])
        assert alone.slope.shape == ()
        assert_allclose(alone, [x[i, j] for x in together], rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("sigma", [0.3, 0.9, 1.9, 7.0])
def test_many_rows_equal_few(sigma, rng):
    """Rows are worked through in blocks; no row is lost or misplaced at their edges."""
    mean = rng.normal(scale=20, size=3001)
    whole = np.array(order_4(mean, sigma**2))
    parts = [np.array(order_4(part, sigma**2)) for part in np.split(mean, [1, 700, 701])]
    assert_allclose(whole, np.concatenate(parts, axis=1), rtol=1e-13)


def test_order_2_is_the_beginning_of_order_4(rng):
    mean, variance = rng.normal(scale=5, size=300), rng.exponential(scale=5, size=300)
    low, high = logistic_normal_moments(mean, variance), order_4(mean, variance)
    assert low.skew is None
    assert low.jerk is None
    for a, b in zip(low[:3], high[:3], strict=True):
        assert_allclose(a, b, rtol=1e-14)


def test_arguments_are_not_written_to():
    mean, variance = np.array([-1.0, 2.0]), np.array([0.5, 9.0])
    mean.flags.writeable = variance.flags.writeable = False
    order_4(mean, variance)


def test_memory_is_a_few_numbers_per_row():
    import tracemalloc

    mean, variance = np.zeros(200_000), np.full(200_000, 9.0)
    tracemalloc.start()
    order_4(mean, variance)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * mean.nbytes + 3e6


@pytest.mark.parametrize(
    ("mean", "variance", "order", "message"),
    [
        (np.nan, 1.0, 2, "mean must be finite"),
        ([0.0, np.inf], 1.0, 2, "mean must be finite"),
        (0.0, np.nan, 2, "variance must be finite"),
        (0.0, np.inf, 2, "variance must be finite"),
        (0.0, [1.0, -1e-9], 2, "variance must be >= 0, got -1e-09"),
        ([], 1.0, 2, "mean must not be empty"),
        (np.zeros(2), np.ones(3), 2, r"must broadcast, got shapes \(2,\) and \(3,\)"),
        (0.0, 1.0, 3, "order must be 2 or 4, got 3"),
    ],
)
def test_bad_input(mean, variance, order, message):
    with pytest.raises(ValueError, match=message):
        logistic_normal_moments(mean, variance, order)
