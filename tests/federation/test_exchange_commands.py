"""A whole run as its users type it, and what the commands say to wrong input."""

import errno
import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np import cli  # noqa: E402
from bayesadmm_np.federation import Coordinator, GLMTask, Message, final_result, load_server, site_key  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402
from oracles.problems import same_bits  # noqa: E402

SITES = {"north": 25, "east": 40, "west": 15}


@pytest.fixture
def bayesadmm(capsys, tmp_path, monkeypatch):
    """Run a command in the folder with the data; return exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in SITES.items():
        X = rng.standard_normal((n, 2)) * [10, 1] + [60, 0]
        f = 0.08 * (X[:, 0] - 60) - X[:, 1]
        y = np.where(rng.random(n) < 1 / (1 + np.exp(-f)), "yes", "no")
        count = rng.poisson(np.exp(0.3 * X[:, 1]))
        table = {"age": X[:, 0] / 60, "dose": X[:, 1], "died": y, "visits": count, "w": rng.integers(1, 3, n)}
        pd.DataFrame(table).to_csv(f"{name}.csv", index=False)

    def call(text):
        monkeypatch.setattr(sys, "argv", ["bayesadmm", *text.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return call


def introduce(bayesadmm, options):
    for name in SITES:
        code, _, err = bayesadmm(f"site init {name} --data {name}.csv --name {name} {options}")
        assert code == 0, err


def play(bayesadmm, options, path="run/broadcast-0001.npz"):
    """Start a run of the three sites and carry its messages to the end; return the last exit code and output."""
    code, out, err = bayesadmm(f"server init run {' '.join(f'{name}/hello.npz' for name in SITES)} {options} --json")
    assert code == 0, err
    path = json.loads(out)["written"]
    while not path.endswith("final.npz"):
        replies = []
        for name in SITES:
            code, out, err = bayesadmm(f"site step {name} {path} --json")
            assert code == 0, err
            replies.append(json.loads(out)["written"])
        code, out, err = bayesadmm(f"server step run {' '.join(replies)} --json")
        path = json.loads(out)["written"]
    return code, json.loads(out)


def losses(target, labels=None, columns=("age", "dose")):
    """What the sites compute with, read again without the commands; in the order of the names."""
    found = []
    for name in sorted(SITES):
        frame = pd.read_csv(f"{name}.csv")
        X = np.column_stack([*(frame[column] for column in columns), np.ones(len(frame))])
        if labels is None:
            found.append(ba.losses.Poisson(X, frame[target], weights=frame["w"]))
        else:
            found.append(ba.losses.Logistic(X, (frame[target] == labels[1]).astype(float)))
    return found


def test_a_run_of_three_sites_is_the_run_in_process(bayesadmm):
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    code, told = play(bayesadmm, "--method PVI --gamma 0.6 --accelerate --prior-precision 0.5 --tol 1e-6")
    assert (code, told["status"]) == (0, "CONVERGED")
    method = ba.Accelerated(ba.methods.PVI(0.6))
    result = ba.run(method, losses("died", ("no", "yes")), ba.families.FullGaussian(np.zeros(3), 0.5))
    server = load_server("run")
    assert same_bits(server.state.q_g.natural, result.posterior.natural)
    assert all(same_bits(a, b) for a, b in zip(server.state.sites, result.sites, strict=True))
    assert server.state.round == result.rounds
    assert told["rounds"] == told["table"]["rounds"] > result.rounds  # every exchange, questions included
    assert told["objective"] == result.objective[-1]
    assert told["names"] == ["age", "dose", "(intercept)"]
    assert told["mean"] == result.posterior.mean.tolist()
    # by another order of the same sums
    assert told["standard_error"] == pytest.approx(np.sqrt(result.posterior.variance), rel=1e-14)
    code, out, _ = bayesadmm("site step north run/final.npz")
    assert code == 0
    assert "converged" in out
    code, out, _ = bayesadmm("server status run")
    assert code == 0
    assert "north (25 rows)" in out


def test_by_default_a_run_ends_at_the_maximum_of_the_pooled_likelihood(bayesadmm):
    """As statsmodels has it from all rows; the broken twin is the posterior under a prior."""
    sm = pytest.importorskip("statsmodels.api")
    introduce(bayesadmm, "--target died --loss logistic --features age,dose --standardize")
    code, told = play(bayesadmm, "")
    assert code == 0
    frame = pd.concat([pd.read_csv(f"{name}.csv") for name in SITES])
    design = np.column_stack([frame[["age", "dose"]], np.ones(len(frame))])
    pooled = sm.Logit((frame["died"] == "yes").astype(float), design).fit(disp=0, tol=1e-12)
    errors = pooled.bse.to_numpy()
    assert np.abs((np.array(told["mean"]) - pooled.params.to_numpy()) / errors).max() < 1e-6
    assert np.allclose(told["standard_error"], errors, rtol=1e-6)


def test_a_posterior_takes_few_exchanges(bayesadmm):
    """Guarded accelerated PVI, as in one process, ends where joint Newton steps do; the twin is the mode."""
    introduce(bayesadmm, f"--target visits --loss poisson --features age,dose --weights w {OPTIONS}")
    code, told = play(bayesadmm, "--inference posterior --prior-precision 0.5")
    prior = ba.families.FullGaussian(np.zeros(3), 0.5)
    result = ba.run(ba.Guarded(ba.Accelerated(ba.methods.PVI())), losses("visits"), prior, tol=1e-8)
    server = load_server("run")
    assert (code, server.state.round, told["mean"]) == (0, result.rounds, result.posterior.mean.tolist())
    assert result.rounds <= 9
    joint = ba.run(ba.Guarded(ba.methods.JointNewton()), losses("visits"), prior, tol=1e-12).posterior
    moved = np.abs(result.posterior.mean - joint.mean) / np.sqrt(joint.variance)
    assert moved.max() <= server.outcome.certificate.distance.sd_units
    pooled = ba.solve_pooled(losses("visits"), prior).posterior
    assert np.allclose(told["mean"], pooled.mean, rtol=1e-6)
    mode = ba.run(ba.Guarded(ba.methods.Newton()), losses("visits"), prior, tol=1e-8).posterior
    assert np.abs((mode.mean - pooled.mean) / np.sqrt(pooled.variance)).max() > 1e-4


def test_a_run_that_fails_has_exit_code_one(bayesadmm):
    introduce(bayesadmm, f"--target visits --loss poisson --features age,dose {OPTIONS}")
    code, told = play(bayesadmm, "--method BLR --family isotropic --rounds 30")
    assert code == 1
    assert told["status"] in ("DIVERGED", "NOT_A_DISTRIBUTION", "NOT_FINITE")
    assert bayesadmm("server status run")[0] == 1
    assert bayesadmm("site step north run/final.npz")[0] == 1


def kept(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.*") if path.suffix not in ("", ".lock")}


def test_messages_that_are_refused_have_exit_code_three(bayesadmm, tmp_path):
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    assert bayesadmm("server init run north/hello.npz east/hello.npz --method PVI")[0] == 0
    hello = Message.read("north/hello.npz")
    Message("hello", {**hello.header, "loss": "Unheard"}, hello.arrays).sealed(site_key("north")).write("unknown.npz")
    Message("hello", {**hello.header, "features": [[]] * (1 << 20)}, hello.arrays).write("long.npz")
    (tmp_path / "half.npz").write_bytes((tmp_path / "run/broadcast-0001.npz").read_bytes()[:300])
    before = kept(tmp_path)
    for command, word in {
        "site step north half.npz": "half.npz",
        "site step north north/hello.npz": "kind",
        "site step west run/broadcast-0001.npz": "sites",
        "server step run half.npz": "half.npz",
        "server step run north/hello.npz": "kind",
        "server init other north/hello.npz north/hello.npz": "a name of its own",
        "server init other unknown.npz": "loss",
        "server init other long.npz": "in place of a header that fits",
    }.items():
        code, out, err = bayesadmm(command)
        assert (code, out, word in err) == (3, "", True), (command, err)
        assert "The run is as it was." in err
    assert kept(tmp_path) == before


INIT = "site init n --data north.csv --target died --name n --loss logistic --features age,dose"

NOT_UNDERSTOOD = {  # a command, and a word that it says
    INIT.replace("north.csv", "none.csv"): "none.csv",
    INIT.replace("died", "dead"): "'died'",
    f"{INIT},doze": "'dose'",
    INIT.replace("logistic", "logit"): "'logit'",
    INIT.replace("logistic", "ridge"): "'died'",
    f"{INIT} --classes no,maybe": "'yes'",
    INIT.replace("--name n", "--name a/b"): "site",
    f"{INIT} --noise-variance 0": "--noise-variance",
    "site step nowhere run/broadcast-0001.npz": "site.json",
    "site step north nothing.npz": "nothing.npz",
    "server init run nothing.npz": "nothing.npz",
    "server step nowhere north/hello.npz": "nowhere",
    "server init run north/hello.npz --method PVJ": "'PVJ'",
    "server init run north/hello.npz --method JointNewton": "--method",
    "server init run north/hello.npz --method PVI --rho 1": "--rho",
    "server init run north/hello.npz --family ful": "'full'",
    "server init run north/hello.npz --method ADMM": "family",
    "server init run north/hello.npz --tol 0": "tol",
    "server init run north/hello.npz --prior-precision -1": "precision",
    "server init run north/hello.npz --metod PVI": "option",
}


def test_what_is_not_understood_has_exit_code_two(bayesadmm):
    bayesadmm("site init north --data north.csv --name north --target died --loss logistic --features age,dose")
    found = {command: bayesadmm(command) for command in NOT_UNDERSTOOD}
    wrong = {
        command: said
        for command, said in found.items()
        if said[:2] != (2, "") or NOT_UNDERSTOOD[command].lower() not in said[2].lower()
    }
    assert wrong == {}


def test_rows_that_changed_are_refused(bayesadmm):
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    bayesadmm(f"server init run {' '.join(f'{name}/hello.npz' for name in SITES)} --method PVI")
    frame = pd.read_csv("north.csv")
    for _ in range(2):  # before the first answer, and after it
        frame.assign(dose=frame["dose"] + 1.0).to_csv("north.csv", index=False)
        code, _, err = bayesadmm("site step north run/broadcast-0001.npz")
        assert code == 3
        assert "have changed since" in err
        frame.to_csv("north.csv", index=False)
        assert bayesadmm("site step north run/broadcast-0001.npz")[0] == 0
    assert bayesadmm("site init north --data north.csv --name north --target died --loss logistic")[0] == 2


def test_a_site_without_all_classes_takes_part_and_a_run_without_them_is_refused(bayesadmm):
    for name in ("north", "east", "west"):
        frame = pd.read_csv(f"{name}.csv")
        if name != "west":
            frame.assign(died="no").to_csv(f"{name}.csv", index=False)
    introduce(bayesadmm, "--target died --loss logistic --features age,dose --classes no,yes")
    assert play(bayesadmm, "--prior-precision 1")[0] == 0
    assert load_server("run").spec.classes == ("no", "yes")
    code, _, err = bayesadmm("server init alone north/hello.npz east/hello.npz")
    assert code == 3
    assert "column 'died' has one level, 'no', at all sites" in err


def test_helps_teach(bayesadmm):
    for command in ("site", "site init", "site step", "server", "server init", "server step"):
        code, out, _ = bayesadmm(f"{command} --help")
        assert (code, "Exit codes: 0 done" in out, f"bayesadmm {command.split()[0]}" in out) == (0, True, True), command


def test_the_final_message_is_the_result_and_ends_as_fit_does(bayesadmm):
    """Where the rounds have run out every command says so by its exit code; the broken twin has more of them."""
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    ended, told = play(bayesadmm, "--rounds 2")
    fitted, _, _ = bayesadmm(f"fit {' '.join(f'{n}.csv' for n in SITES)} --target died --features age,dose --rounds 2")
    others = "server status run", "site step north run/final.npz", "server step run", "export run --out m.npz"
    assert [ended, fitted, *(bayesadmm(command)[0] for command in others)] == [1] * 6
    assert bayesadmm(f"fit {' '.join(f'{n}.csv' for n in SITES)} --target died --features age,dose")[0] == 0
    at_site = json.loads(bayesadmm("site step north run/final.npz --json")[1])
    counts = {told["rounds"], told["table"]["rounds"], at_site["rounds"], at_site["table"]["rounds"]}
    assert counts == {load_server("run").exchanges}
    result = final_result(Message.read("run/final.npz"), load_server("run"))
    assert sorted(result.sites) == sorted(SITES)
    assert told["status"] == result.status.name == "ROUND_LIMIT"
    assert result.certificate is not None


def test_the_same_command_again_is_another_run(bayesadmm):
    """Sites, options and numbers of rows are the same, labels perhaps not: messages must not mix."""
    introduce(bayesadmm, "--target died --loss logistic --features age,dose --minimum-sites 2")
    start = "server init {} north/hello.npz east/hello.npz --method PVI"
    for run in ("one", "two"):
        assert bayesadmm(start.format(run))[0] == 0
    assert bayesadmm("site step north one/broadcast-0001.npz")[0] == 0
    code, _, err = bayesadmm("server step two north/reply-north-0001.npz")
    assert code == 3
    assert "run must be" in err
    code, _, err = bayesadmm(start.format("one"))
    assert code == 2
    assert "one holds another run" in err
    for run in ("three", "four"):  # broken twin: with a seed they are one
        assert bayesadmm(start.format(run) + " --seed 1")[0] == 0
    assert load_server("three").spec.run == load_server("four").spec.run != load_server("one").spec.run


def test_a_site_that_did_not_ask_is_not_rescaled(bayesadmm, tmp_path):
    """A server that chooses the units could learn from overflows how large the rows are."""
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    prior = ba.families.FullGaussian(np.zeros(3), 1.0)
    hellos = [Message.read(f"{name}/hello.npz") for name in SITES]

    class Rescaling(GLMTask):
        def spec(self, hellos):
            return replace(super().spec(hellos), centre=np.zeros(3), scale=np.full(3, 1e-150))

    Coordinator.start(hellos, Rescaling(ba.methods.PVI(), prior)).broadcast().write("units.npz")
    code, _, err = bayesadmm("site step north units.npz")
    assert code == 3
    assert "this site was not told to standardize" in err


def test_replies_come_one_by_one_and_status_says_who_is_missing(bayesadmm):
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    assert bayesadmm(f"server init run {' '.join(f'{name}/hello.npz' for name in SITES)} --method PVI")[0] == 0
    for name in SITES:
        assert bayesadmm(f"site step {name} run/broadcast-0001.npz")[0] == 0
    first, second, last = SITES
    code, out, _ = bayesadmm(f"server step run {second}/reply-{second}-0001.npz --json")
    told = json.loads(out)
    assert (code, told["written"], told["waits_for"]) == (0, "run/broadcast-0001.npz", 1)
    assert told["answered"] == [second]
    assert sorted(told["missing"]) == sorted([first, last])
    out = bayesadmm("server status run")[1]
    assert f"of {', '.join(sorted([first, last]))}; {second} answered" in out
    told = json.loads(bayesadmm(f"server step run --without {first},{last} --json")[1])
    assert told["written"] == "run/broadcast-0002.npz"
    assert told["left_out"] == [{"round": 1, "sites": sorted([first, last])}]
    assert "left out" in bayesadmm("server status run")[1]
    assert bayesadmm("server step run --partial")[0] == 2  # nobody has answered
    assert bayesadmm("server step run --without nort")[0] == 2


def test_a_reply_replaces_nothing_that_somebody_needs(bayesadmm, tmp_path):
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    bayesadmm(f"server init run {' '.join(f'{site}/hello.npz' for site in SITES)} --method PVI")
    assert bayesadmm("site step north run/broadcast-0001.npz")[0] == 0
    before = kept(tmp_path)
    Path("link").symlink_to("north")
    own = ["state.npz", "privacy.npz", "hello.npz", "site.json", "final.npz", ".site.lock", ".server.lock", ".lock"]
    taken = ["north.csv", "run/broadcast-0001.npz", *(f"{at}/{name}" for at in ("north", "link") for name in own)]
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")
        taken.append("pipe")
    for name in (*taken, "east/../north/state.npz", "east"):
        code, out, err = bayesadmm(f"site step north run/broadcast-0001.npz --out {name}")
        assert (code, out) == (2, ""), name
        assert "it would be lost" in err or "is not a file" in err, name
    Path("link").unlink()
    assert kept(tmp_path) == before
    assert "pipe" not in taken or stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert bayesadmm("site step north run/broadcast-0001.npz --out north/mine.npz")[0] == 0


def test_a_full_disk_is_named_by_the_file_that_did_not_fit(bayesadmm, monkeypatch):
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    bayesadmm(f"server init run {' '.join(f'{site}/hello.npz' for site in SITES)} --method PVI")

    def fsync(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    code, _, err = bayesadmm("site step north run/broadcast-0001.npz")
    assert (code, err) == (2, f"bayesadmm site step: {Path('north/state.npz')}: no space left on device.\n")


def test_one_command_does_a_whole_run_and_goes_on_with_one(bayesadmm):
    """Every message is that of the steps, to the last byte; the broken twin has another seed."""
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    for name in SITES:
        shutil.copytree(name, f"by-hand-{name}")
        shutil.copytree(name, f"begun-{name}")
    code, told = play(bayesadmm, "--seed 1")
    end = Message.read("run/final.npz").digest  # of all but the seal: each server has its own key
    begun = " ".join(f"begun-{name}" for name in SITES)
    hellos = " ".join(f"begun-{name}/hello.npz" for name in SITES)
    assert bayesadmm(f"server init begun {hellos} --seed 1")[0] == 0
    assert bayesadmm("site step begun-north begun/inquiry-0001.npz --out answer.npz")[0] == 0
    assert bayesadmm("server step begun answer.npz")[0] == 0  # interrupted there
    hand = " ".join(f"by-hand-{name}" for name in reversed(SITES))
    for command in (f"server run begun {begun}", f"server run alone {hand} --seed 1", f"server run begun {begun}"):
        found, out, err = bayesadmm(f"{command} --json")
        assert (found, json.loads(out)["mean"]) == (code, told["mean"]) == (0, told["mean"]), err
        assert Message.read(f"{command.split()[2]}/final.npz").digest == end
        assert "exchanges" in err
    assert bayesadmm("site step by-hand-east alone/final.npz")[0] == 0
    for name in SITES:
        shutil.rmtree(name)
    introduce(bayesadmm, "--target died --loss logistic --features age,dose")
    assert bayesadmm(f"server run other {' '.join(SITES)} --seed 2 --no-progress")[0] == 0
    assert Message.read("other/final.npz").digest != end
