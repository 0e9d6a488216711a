"""Scripts of benchmarks/: the tables and the claims of the pages are those of the results, and the timing for a GPU."""

import copy
import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the scripts draw")
torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import MLP  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
fails = pytest.raises(AssertionError)


def imported(monkeypatch, name):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(name)


@pytest.fixture
def script(monkeypatch):
    return imported(monkeypatch, "deep_tables")


@pytest.fixture
def fedivon(monkeypatch):
    return imported(monkeypatch, "fedivon_figure")


@pytest.fixture
def device(monkeypatch):
    return imported(monkeypatch, "torch_device")


def row(method, number, accuracy=0.5, nll=1.25, seeds_done=3, ensemble=None, **others):
    """One row of results.json; ours are far from all of the papers' numbers."""
    found = {"method": method, "round": number, "seeds_done": seeds_done, "seeds": 3, **others}
    found |= {"accuracy_mean": accuracy, "accuracy_sd": accuracy and 0.125, "nll_mean": nll, "nll_sd": nll and 0.25}
    found |= {"ensemble_accuracy_mean": ensemble, "ensemble_accuracy_sd": ensemble and 0.0625}
    found |= {"ensemble_nll_mean": ensemble and 2.0, "ensemble_nll_sd": ensemble and 0.5}
    return found | {"bytes_round": 3e6 if seeds_done else None, "seconds_round": 1.5 if seeds_done else None}


def results(table, sweep=(), **machine):
    where = {"cores": 4, "threads": 1, "architecture": "x86_64", "cuda": "none", **machine}
    experiment = {"name": "Small", "seeds": [0, 1, 2], "training": {"device": "cpu"}}
    return {"experiment": experiment, "machine": where, "table": list(table), "sweep": list(sweep)}


def cells(lines):
    """The body of a table: method, round, ours, the paper's, ours, the paper's."""
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


# Typed from the papers: Tables 1, 2 and 4 of "Federated ADMM from Bayesian Duality" (FedAvg: its earlier version), and
# for FedLap-Func Table 1 of "Connecting Federated ADMM to Bayes".
THEIRS = {
    "fashion_homogeneous": [
        ("FedAvg", 10, "72.3 ± 0.4", "0.70"),
        ("FedProx", 50, "80.3 ± 0.1", "0.56"),
        ("FedDyn", 25, "77.5 ± 0.8", "0.63"),
        ("FedLapFunc", 25, "77.9 ± 0.3", "–"),
        ("IVONADMM", 50, "83.4 ± 0.1", "0.60"),
        ("IVONADMM, ensemble", 50, "84.1 ± 0.2", "0.53"),
    ],
    "mnist_100_clients": [
        ("FedAvg", 25, "89.4 ± 0.2", "0.67"),
        ("FedProx", 25, "89.6 ± 0.4", "0.59"),
        ("FedAvg", 100, "94.1 ± 0.0", "0.24"),
        ("FedDyn", 100, "94.9 ± 0.1", "0.18"),
        ("IVONADMM", 50, "94.2 ± 0.1", "0.19"),
    ],
    "fashion_heterogeneous": [("FedAvg", 10, "70.4 ± 0.9", "0.78"), ("IVONADMM", 25, "81.4 ± 0.4", "0.53")],
    "cifar10_zenke": [
        ("FedAvg", 50, "75.1 ± 0.3", "1.5"),
        ("FedLapCov", 10, "75.1 ± 1.1", "0.7"),
        ("IVONADMM", 25, "78.9 ± 0.8", "0.6"),
    ],
    "cifar10_acar": [
        ("FedAvg", 50, "66.0 ± 1.5", "2.3"),
        ("FedLapCov", 50, "67.5 ± 1.2", "1.0"),
        ("IVONADMM", 25, "69.5 ± 0.8", "1.0"),
    ],
}


def check_beside(script, stem):
    for label, number, accuracy, nll in THEIRS[stem]:
        method = label.removesuffix(", ensemble")
        table = [row(method, n, ensemble=0.75 if "IVON" in method else None) for n in (number, 3)]
        own = cells(script.table(stem, results(table)))
        name = script.name_of(label)
        ours = ("75.0 ± 6.2", "2.00 ± 0.50") if label != method else ("50.0 ± 12.5", "1.25 ± 0.25")
        assert (name, str(number), ours[0], accuracy, ours[1], nll) in own
        assert (name, "3", ours[0], "–", ours[1], "–") in own  # a round that the paper does not have


def test_rows_stand_beside_those_of_the_paper(script, monkeypatch):
    for stem in THEIRS:
        check_beside(script, stem)
        paper = script.PAPER[stem]
        twins = [
            {**paper, "FedAvg": paper["IVONADMM"], "IVONADMM": paper["FedAvg"]},  # two rows
            {name: (accuracies[::-1], nlls) for name, (accuracies, nlls) in paper.items()},  # first and last round
            {name: (accuracies, nlls[::-1]) for name, (accuracies, nlls) in paper.items()},
        ]
        for twin in twins:
            monkeypatch.setitem(script.PAPER, stem, twin)
            with fails:
                check_beside(script, stem)


def test_means_of_three_rounds_stand_beside_the_papers_which_are_such_means(script):
    means = {"accuracy_last3_mean": 0.25, "accuracy_last3_sd": 0.5, "nll_last3_mean": 3.0, "nll_last3_sd": 1.0}
    lines = script.table("raw_fashion_heterogeneous", results([{**row("FedAvg", 50), **means}]))
    assert cells(lines) == [
        ("FedAvg", "50", "25.0 ± 50.0", "50.0 ± 12.5", "76.0 ± 0.7", "3.00 ± 1.00", "1.25 ± 0.25", "0.67")
    ]
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")


def test_missing_seeds_and_failed_runs_are_said(script):
    table = [row("FedDyn", 10, None, None, 0), row("FedLap", 10, nll=None)]
    table = [row("FedAvg", 10, seeds_done=2, seeds_failed=0), *table]
    own = cells(script.table("fashion_homogeneous", results(table)))
    assert own[0][:3] == ("FedAvg (2 of 3 seeds)", "10", "50.0 ± 12.5")
    assert own[1] == ("FedDyn (3 of 3 seeds diverged)", "10", "–", "75.3 ± 0.8", "–", "0.67")
    assert own[2][2:] == ("50.0 ± 12.5", "72.1 ± 0.2", "–", "0.71")  # an infinite NLL is null in JSON
    costs = cells(script.costs(results(table)))
    assert costs[0] == ("FedAvg", "–", "3.0", "1.5")
    assert costs[1] == ("FedDyn", "–", "–", "–")


def test_the_page_is_what_the_script_writes(script):
    text = script.PAGE.read_text(encoding="utf-8")

    def check(shown):
        assert shown == script.page(shown), (
            "run benchmarks/deep_tables.py: results/deep/tables.md is not of these results"
        )

    check(text)
    inside = text.index("| FedAvg | 10 |")
    with fails:
        check(text[:inside] + text[inside:].replace("± 0.1", "± 0.2", 1))
    other = text.replace("# The papers' tables", "# Tables", 1)
    assert other != text
    check(other)  # what is around them is kept


def test_numbers_in_prose_are_those_of_the_results(script):
    for path in script.PAGES.glob("*.md"):
        made = script.filled(path.read_text(encoding="utf-8"))
        shown = (ROOT / "docs" / path.name).read_text(encoding="utf-8")
        assert shown == made, f"run benchmarks/deep_tables.py: docs/{path.name} is not of these results"
        assert "{{" not in shown


def test_the_short_paper_has_the_papers_numbers(script, monkeypatch):
    theirs = imported(monkeypatch, "paper_tables").THEIRS
    table = script.PAPER["raw_fashion_heterogeneous"]

    def check(theirs):
        assert theirs == {method: table[method][0][-1].split(" ")[0] for method in theirs}

    check(theirs)
    with fails:
        check({**theirs, "FedAvg": "77.0"})


def test_rounds_and_exchanges_are_counted_from_the_results(script, monkeypatch):
    """Small results with known counts; the twin reads the first round below a level, and not the last one above."""
    tables = script.cost_tables
    assert [tables.reached([0.5, 0.005, 0.02, 0.004, 1e-7], level) for level in (1e-2, 1e-3, 1e-8)] == [4, 5, None]
    assert tables.reached([], 1e-2) is None
    first = next(at for at, gap in enumerate([0.5, 0.005, 0.02, 0.004], start=1) if gap <= 1e-2)
    assert first != tables.reached([0.5, 0.005, 0.02, 0.004], 1e-2)
    assert tables.exchanges([[3, 10], None, [5, 20]]) == "4.0 (5), 1 lost"
    assert tables.exchanges([None]) == "–"
    rows = [
        {"mode": True, "problem": "p", "Newton from zero": [4, 8], "FedLap-Cov": [n, 8], "guarded Newton": [n, 8]}
        for n in (4, 5)
    ]
    monkeypatch.setattr(tables, "results", lambda name: {"rows": [*rows, {"mode": False, "problem": "p"}]})
    assert "in 1 of 2 cases" in tables.mode_finding()
    assert "in 50.0%" in tables.mode_finding()


def test_where_bayesadmm_as_printed_ends(script):
    """The sentences of docs/benchmarks.md that are no number: which runs end, and that others are ill posed."""
    rows = script.cost_tables.results("rounds")["rows"]
    runs = {key: row for key, row in rows.items() if key.split(" | ")[1].startswith("BayesADMM")}
    ended = {key: row["rounds"] + 1 for key, row in runs.items() if row["status"] == "ILL_POSED_CLIENT"}
    diagonal = [f"{name}-diagonal | BayesADMM, ρ = {rho}" for name in ("digits", "mnist") for rho in (1, 2)]
    assert ended == {**dict.fromkeys(diagonal, 2), "digits-full | BayesADMM, ρ = 1": 3}
    others = runs.keys() - ended.keys()
    assert {runs[key]["status"] for key in others} == {"STOPPED", "ROUND_LIMIT"}
    assert {key for key in others if runs[key]["ill_posed_rounds"] == 0} == {key for key in runs if "safeguard" in key}


def test_a_number_that_does_not_exist_is_an_error(script):
    assert script.filled("{{fashion_homogeneous|FedAvg|10|accuracy}} %") == "84.4 %"
    for wrong in ("FedAvg|11|accuracy", "FedBest|10|accuracy", "FedAvg|10|area"):
        with pytest.raises((ValueError, KeyError)):
            script.filled("{{fashion_homogeneous|" + wrong + "}}")
    with pytest.raises(ValueError, match="has no run of FedBest at the scale 255"):
        script.filled("{{scale|255|FedBest|nll}}")


def test_agreement_is_within_both_deviations_and_a_point(script):
    """0.5 ± sd of ours against means in per cent: both conditions bind, and a seed that is missing is none of both."""

    def mark(mean, sd, own=0.125, **given):
        return script.agreement({**row("FedAvg", 10, **given), "accuracy_sd": own}, "accuracy", f"{mean} ± {sd}")

    assert [mark(mean, 2.5) for mean in (49.1, 48.9, 50.9, 51.1)] == ["✓", "✗", "✓", "✗"]  # a point, within 15.1
    # deviations of .2 and .3, and .1 for rounding: .6, below a point
    assert [mark(mean, 0.3, 0.002) for mean in (49.41, 49.39, 50.59, 50.61)] == ["✓", "✗", "✓", "✗"]
    assert mark(50.0, 2.5) == "✓"
    assert mark(50.0, 2.5, seeds_done=2) == "✗"  # the mean of seeds that did not diverge
    assert mark(50.0, 2.5, seeds_done=2, seeds_failed=0) == ""  # a seed that was not run
    assert mark(50.0, 2.5, seeds_done=1, seeds_failed=1) == "✗"
    assert mark(1.0, 1.0, accuracy=None) == "✗"
    assert script.agreement(row("FedAvg", 10), "accuracy", "–") == "–"


def test_a_verdict_follows_its_numbers(script, monkeypatch):
    """FedAvg agrees as the papers ran it, FedProx by a variant, FedDyn not; of IVON-ADMM a seed diverged."""
    paper = dict.fromkeys(("FedAvg", "FedProx", "FedDyn", "IVONADMM"), (("50.0 ± 0.0",) * 3, ("1.0",) * 3))
    monkeypatch.setitem(script.PAPER, "small", paper)

    def verdict(**accuracies):
        labels = {
            "FedAvg": 0.4,
            "FedAvg moments kept": 0.5,
            "FedProx": 0.4,
            "FedProx rho=2": 0.5,
            "FedDyn": 0.4,
            "IVONADMM": 0.5,
        } | accuracies
        table = [
            row(label, at, value, seeds_done=2 if (label, at) == ("IVONADMM", 50) else 3)
            for label, value in labels.items()
            for at in (10, 25, 50)
        ]
        monkeypatch.setattr(script, "results_of", lambda stem: {"table": table})
        return script.verdict("small", "accuracy")

    explained = "Reproduced with a difference that is explained: FedProx (rho=2). "
    last = "FedDyn, IVON-ADMM (1 of 3 seeds diverged)."
    assert verdict() == f"**Verdict.** Reproduced: FedAvg. {explained}Not reproduced: {last}"
    assert verdict(FedProx=0.5) == f"**Verdict.** Reproduced: FedAvg, FedProx. Not reproduced: {last}"
    assert verdict(**{"FedAvg moments kept": 0.4}) == f"**Verdict.** {explained}Not reproduced: FedAvg, {last}"


def test_fewer_seeds_than_the_papers_are_said(script, monkeypatch):
    """Without a mark or a claim: one seed of FedLap, two points off, and no run of FedAvg."""
    monkeypatch.setitem(script.PAPER, "open", dict.fromkeys(("FedLap", "FedAvg"), (("50.0 ± 0.0",) * 3, ("1.0",) * 3)))
    table = [row("FedLap", at, 0.48, seeds_done=1, seeds_failed=0) for at in (10, 25, 50)]
    monkeypatch.setattr(script, "results_of", lambda stem: {"table": table})
    own = "Open (1 of 3 seeds, up to 2.0 points off): FedLap."
    assert script.verdict("open", "accuracy") == f"**Verdict.** Not run: FedAvg. {own}"
    assert script.cell(table[0], "accuracy", "50.0 ± 0.0") == "48.0, 1 of 3 seeds (50.0)"


def test_results_of_new_methods_join_those_that_are_kept(script, monkeypatch, tmp_path):
    """Runs of the file's later methods are taken alone; of another experiment they are refused."""
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    plan = {"data": {}, "model": {}, "rounds": 1, "seeds": [0], "training": {}}
    plan["methods"] = [{"label": label} for label in ("old", "new")]

    def folder(name, label, **changes):
        (home := tmp_path / name / "small").mkdir(parents=True)
        own = {"experiment": plan | changes, "machine": name, "runs": [{"method": label}], "table": [row(label, 1)]}
        (home / "results.json").write_text(json.dumps(own), encoding="utf-8")
        return home

    script.take(folder("a", "old"))
    script.take(folder("b", "new"))
    kept = json.loads((tmp_path / "small.json").read_text(encoding="utf-8"))
    assert kept["runs"] == [{"machine": "a", "method": "old"}, {"method": "new"}]
    assert [each["method"] for each in kept["table"]] == ["old", "new"]
    with pytest.raises(SystemExit, match="seeds"):
        script.take(folder("c", "new", seeds=[1]))


def test_a_figure_of_few_rounds_shows_every_bar(script, tmp_path, monkeypatch):
    """Bands wider than their axis were cut; the twin is an axis of the means alone."""
    drawn = []
    monkeypatch.setattr(script.draw_rounds.__globals__["style"], "save", lambda figure, *rest: drawn.append(figure))
    monkeypatch.setattr(Path, "unlink", lambda self: None)
    table = script.results_of("fashion_heterogeneous")["table"]
    script.draw_rounds("title", table, script.PAPER["fashion_heterogeneous"], tmp_path, "stem")
    low, high = drawn[0].axes[0].get_xlim()
    ends = [100 * (r["accuracy_mean"] + sign * r["accuracy_sd"]) for r in table for sign in (-1, 1)]
    assert low <= min(ends) < max(ends) <= high
    assert max(ends) > max(100 * r["accuracy_mean"] for r in table)


def claims_of(text):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {claim.split(":")[0]: [cell[0] for cell in cells] for claim, *cells in lines}


def test_a_claim_follows_its_numbers(fedivon, monkeypatch):
    """Turned results turn the verdicts: FedIvon's samples perfectly calibrated, and worse than all at every loss."""
    kept = {stem: fedivon.results_of(stem) for stem in (*fedivon.STANDARD, *fedivon.PERSONAL, fedivon.EPOCHS)}

    def verdicts(ece, nll, own):
        turned = copy.deepcopy(kept)
        for results in turned.values():
            for run in results["runs"]:
                if run["method"] == "FedIvon":
                    run["curves"]["ensemble_ece"][-1], run["curves"]["ensemble_nll"][-1] = ece, nll
                    run["curves"]["ensemble_accuracy"][-1] = own
                    if "personal_ensemble" in run["last"]:
                        run["last"]["personal_ensemble"]["accuracy"] = own
        monkeypatch.setattr(fedivon, "results_of", turned.__getitem__)
        return claims_of(fedivon.claims())

    for good in (True, False):
        found, marks = verdicts(0.0 if good else 1.0, 0.0 if good else 9.0, float(good)), ["✓" if good else "✗"] * 2
        for claim in ("sampling lowers the ECE", "highest accuracy", "lowest ECE", "lowest NLL"):
            assert found[claim] == marks
        assert found["server's model 8 points above pFedVEM's"] == found["own models at least as good"] == marks


def test_the_products_of_a_step_are_counted(device):
    """Forward and both backward products of three layers, without the gradient in the inputs."""
    first, second, third = (2 * 64 * size for size in (784 * 200, 200 * 100, 100 * 10))
    assert device.flops_of(Network(MLP(), torch.device("cpu"))) == 2 * first + 3 * second + 3 * third


def test_a_small_run_is_written_whole(device, monkeypatch, tmp_path):
    out = tmp_path / "device.json"
    monkeypatch.setattr(
        sys, "argv", ["torch_device.py", "--device", "cpu", "--clients", "2", "--rows", "8", "--out", str(out)]
    )
    device.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    for name in ("adam", "ivon"):
        work = found["local_work"][name]
        assert work["sequential_over_batched"] == work["sequential"] / work["batched"]
        assert work["of_matmul_rate"] == work["flops_per_second"] / found["matmul_flops_per_second"] > 0
        assert 0 < found["seconds_of_a_round"][name]["later"] < found["seconds_of_a_round"][name]["wall"]
    assert found["machine"]["device"] == "cpu"
