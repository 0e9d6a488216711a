"""Everything may leave: for tests of other things, on rows that are too few to be sent, and are no secret."""

from bayesadmm_np.federation import DisclosureRules

ALLOWED = DisclosureRules.none()
OPTIONS = (
    "--minimum-rows 0 --minimum-count 0 --minimum-class-count 0 --minimum-sites 0 "
    "--most-parameters inf --budget inf --most-evaluations inf"
)


def roomy(**rules):
    """The usual rules but for a budget that no run of a test spends."""
    return DisclosureRules(**{"budget": 1000.0, **rules})
