"""Figure 5c: the sweep, the choice, the claims that can fail, and torch that is absent."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the figures need the extra `demos`")
pytest.importorskip("tqdm", reason="the figures need the extra `demos`")
pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.demos import fig5c_deep, reproduce
from bayesadmm_np.demos.fig5c_deep import ADMM, PVI


def trial(rho, gamma, accuracy):
    by_round, status = ([], "DIVERGED") if accuracy is None else ([[accuracy, accuracy]], "ROUND_LIMIT")
    return {"rho": rho, "gamma": gamma, "accuracy": accuracy, "by_round": by_round, "status": status}


def curve(label, rho, gamma, accuracy):
    nll, statuses = [[1.0, 0.3 if label == ADMM else 0.2], [1.0, None]], ["ROUND_LIMIT"] * 2
    return {"label": label, "rho": rho, "gamma": gamma, "accuracy": accuracy, "nll": nll, "statuses": statuses}


def numbers():
    sweep = {
        ADMM: [trial(0.5, 0.05, 0.9), trial(0.5, 0.1, None), trial(1.0, 0.1, 0.8)],
        PVI: [trial(1.0, 0.1, 0.8), trial(1.0, 0.3, 0.95)],
    }
    curves = [curve(ADMM, 0.5, 0.05, [[0.3, 0.91], [0.3, 0.89]]), curve(PVI, 1.0, 0.3, [[0.4, 0.9], [0.4, 0.88]])]
    return {"data": "toy", "parameters": 10, "rounds": 2, "epochs": 1, "sweep": sweep, "curves": curves}


def failing(numbers):
    return [j for j, claim in enumerate(fig5c_deep.claims(numbers)) if not claim[1]]


def test_every_claim_can_fail():
    assert failing(numbers()) == []
    low, other, calm = numbers(), numbers(), numbers()
    low["curves"][0]["accuracy"] = [[0.5, 0.3], [0.5, 0.3]]
    low["sweep"][PVI][1] = trial(1.0, 0.3, 0.85)
    assert failing(low) == [0, 1, 2]
    other["sweep"][ADMM][2] = trial(1.0, 0.1, 0.7)
    assert failing(other) == [4]
    del calm["sweep"][ADMM][1]
    assert failing(calm) == [5]
    sharp = numbers()
    sharp["curves"][0]["nll"][0][1] = 0.1
    assert failing(sharp) == [3]


def test_the_most_damped_of_the_good_settings_is_chosen():
    trials = [trial(0.5, 0.02, 0.801), trial(1.0, 0.02, 0.803), trial(0.5, 0.05, 0.805), trial(0.5, 0.1, None)]
    assert fig5c_deep.choose(trials) is trials[1]
    assert fig5c_deep.choose([trial(0.5, 0.02, 0.7), *trials[2:]]) is trials[2]
    assert fig5c_deep.choose(trials[3:]) is trials[3]


def test_a_run_that_ends_early_is_said():
    broken = numbers()
    ended = {"accuracy": [[0.7], [0.7, 0.9]], "nll": [[None], [1.0, 0.3]], "statuses": ["DIVERGED", "ROUND_LIMIT"]}
    broken["curves"][0] |= ended
    assert "IVON-ADMM: 1 of 2 seeds end early (diverged)" in list(fig5c_deep.notes(broken))
    fig5c_deep.DEMO.picture(broken)


def test_the_command_writes_its_own_files(tmp_path, monkeypatch):
    """Two settings a method, one seed, two rounds of one epoch."""
    monkeypatch.setattr(fig5c_deep, "SETTINGS", {ADMM: [(0.5, 0.05), (1.0, 0.1)], PVI: [(1.0, 0.1), (1.0, 0.2)]})
    monkeypatch.setattr(fig5c_deep, "TUNING_SEEDS", (100,))
    small = partial(fig5c_deep.compute, rounds=2, epochs=1, seeds=(0,))
    monkeypatch.setattr(fig5c_deep, "DEMO", replace(fig5c_deep.DEMO, compute=small))
    said = []
    reproduce.reproduce(["5c"], out=tmp_path, progress=False, echo=said.append)
    assert {path.name for path in tmp_path.iterdir()} == {f"fig5c_deep.{end}" for end in ("svg", "png", "json")}
    numbers = json.loads((tmp_path / "fig5c_deep.json").read_text(encoding="utf-8"))["figures"]["5c"]["numbers"]
    assert [curve["label"] for curve in numbers["curves"]] == [ADMM, PVI]
    # ρ = 1 and γ = 1/K: one algorithm; a single one of 400 rows may fall to the other side
    same = [numbers["sweep"][ADMM][1]["by_round"], numbers["sweep"][PVI][0]["by_round"]]
    assert np.abs(np.subtract(*same)).max() <= 1 / 400 + 1e-12
    with pytest.raises(ValueError, match="dataset must be one of digits, mnist, fashion"):
        fig5c_deep.compute("cifar")


@pytest.mark.slow
def test_the_script_runs_as_it_stands(tmp_path):
    """One round of one epoch for every setting; whether the claims hold then is not the question."""
    path = Path(__file__).parents[2] / "demos" / "fig5c_deep.py"
    options = ["--rounds", "1", "--epochs", "1", "--seeds", "0", "--out", str(tmp_path), "--no-progress"]
    command = [sys.executable, str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "after the last round both have comparable accuracy" in done.stdout
    assert (tmp_path / "fig5c_deep.svg").exists()


def test_without_torch_nothing_is_drawn_and_the_package_is_named(tmp_path, monkeypatch):
    """Figure 3 was asked for as well; the missing package is noticed before it."""
    plain = importlib.import_module

    def absent(name, *package):
        if name == "bayesadmm_np.torch":
            raise ImportError('bayesadmm_np.torch needs PyTorch: pip install -e ".[torch]".')
        return plain(name, *package)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match="PyTorch"):
        reproduce.reproduce(["3", "5c"], out=tmp_path / "out", progress=False, echo=lambda _: None)
    assert not (tmp_path / "out").exists()
    assert "5c" not in reproduce.DEFAULT
