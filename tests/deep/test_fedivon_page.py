"""benchmarks/fedivon_figure.py: the claims of the page are those of the results that are kept."""

import copy
import importlib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the script draws")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("fedivon_figure")


def rows(text):
    return {tuple(cell.strip() for cell in line.strip("|").split("|"))[:2]: line for line in text.splitlines()[2:]}


def test_a_claim_follows_its_numbers(script, monkeypatch):
    """Turned results turn the verdicts: FedIvon's samples perfectly calibrated, and worse than all at every loss."""
    kept = {stem: script.results_of(stem) for stem in (*script.STANDARD, *script.PERSONAL, script.EPOCHS)}

    def verdicts(ece, nll, own):
        turned = copy.deepcopy(kept)
        for results in turned.values():
            for run in results["runs"]:
                if run["method"] == "FedIvon":
                    run["curves"]["ensemble_ece"][-1], run["curves"]["ensemble_nll"][-1] = ece, nll
                    if "personal_ensemble" in run["last"]:
                        run["last"]["personal_ensemble"]["accuracy"] = own
        monkeypatch.setattr(script, "results_of", turned.__getitem__)
        return rows(script.claims())

    for good in (True, False):
        found = verdicts(0.0 if good else 1.0, 0.0 if good else 9.0, float(good))
        mark = "✓" if good else "✗"
        for stem in ("mnist", "fashion"):
            for claim in (
                "sampling cuts the ECE",
                "lower ECE than FedAvg and FedLaplace",
                "lower NLL than FedAvg and FedLaplace",
            ):
                assert f"| {mark} |" in found[claim, stem]
        assert f"| {mark} |" in found["own models at least as good as pFedVEM's", "skew, mnist"]
