"""A whole run as its users type it, and what the commands say to wrong input."""

import errno
import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.federation import Message, final_result, load_server, site_key  # noqa: E402
from oracles.by_files import SITES, introduce, play, write_tables  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402
from oracles.problems import same_bits  # noqa: E402

DIED = "--target died --loss logistic --features age,dose"


@pytest.fixture
def typed(call):
    """Type a command in the folder with the sites' rows."""
    write_tables()
    return call


def begun(typed):
    """Start a run of the three sites."""
    code, _, err = typed(
        f"server init run {introduce(typed, f'{OPTIONS} {DIED}')} --method PVI --prior-precision 1 --penalize-intercept"
    )
    assert code == 0, err


def losses():
    """What the sites compute with, read again without the commands; in the order of the names."""
    found = []
    for name in sorted(SITES):
        frame = pd.read_csv(f"{name}.csv")
        X = np.column_stack([frame["age"], frame["dose"], np.ones(len(frame))])
        found.append(ba.losses.Logistic(X, (frame["died"] == "yes").astype(float)))
    return found


def test_a_run_of_three_sites_is_the_run_in_process(typed):
    code, told, _ = play(
        typed, DIED, "--method PVI --gamma 0.6 --accelerate --prior-precision 0.5 --penalize-intercept --tol 1e-6"
    )
    assert (code, told["status"]) == (0, "CONVERGED")
    method = ba.Accelerated(ba.methods.PVI(0.6))
    result = ba.run(method, losses(), ba.families.FullGaussian(np.zeros(3), 0.5))
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
    code, out, _ = typed("site step north run/final.npz")
    assert code == 0
    assert "converged" in out
    code, out, _ = typed("server status run")
    assert code == 0
    assert "north (25 rows)" in out


def test_a_run_that_fails_has_exit_code_one(typed):
    site = "--target visits --loss poisson --features age,dose"
    code, told, _ = play(
        typed, site, "--method BLR --family isotropic --rounds 30 --prior-precision 1 --penalize-intercept"
    )
    assert code == 1
    assert told["status"] in ("DIVERGED", "NOT_A_DISTRIBUTION", "NOT_FINITE")
    assert typed("server status run")[0] == 1
    assert typed("site step north run/final.npz")[0] == 1


def kept(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.*") if path.suffix not in ("", ".lock")}


def test_messages_that_are_refused_have_exit_code_three(typed, tmp_path):
    introduce(typed, f"{OPTIONS} {DIED}")
    assert (
        typed("server init run north/hello.npz east/hello.npz --method PVI --prior-precision 1 --penalize-intercept")[0]
        == 0
    )
    hello = Message.read("north/hello.npz")
    Message("hello", {**hello.header, "loss": "Unheard"}, hello.arrays).sealed(site_key("north")).write("unknown.npz")
    Message("hello", {**hello.header, "features": [[]] * (1 << 18)}, hello.arrays).write("long.npz")
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
        "server init other long.npz": "bytes of JSON",
    }.items():
        code, out, err = typed(command)
        assert (code, out, word in err) == (3, "", True), (command, err)
        assert "The run has not changed." in err
    assert kept(tmp_path) == before


INIT = "site init n --data north.csv --target died --name n --loss logistic --features age,dose"

NOT_UNDERSTOOD = {  # a command, and a word that it says
    INIT.replace("north.csv", "none.csv"): "none.csv",
    INIT.replace("logistic", "logit"): "'logit'",
    INIT.replace("--name n", "--name a/b"): "site",
    f"{INIT} --noise-variance 0": "--noise-variance",
    "site step nowhere run/broadcast-0001.npz": "site.json",
    "server init run nothing.npz": "nothing.npz",
    "server step nowhere north/hello.npz": "nowhere",
    "server init run north/hello.npz --method JointNewton": "--method",
    "server init run north/hello.npz --method PVI --rho 1": "--rho",
    "server init run north/hello.npz --method ADMM": "family",
    "server init run north/hello.npz --tol 0": "tol",
    "server init run north/hello.npz --metod PVI": "option",
}


def test_what_is_not_understood_has_exit_code_two(typed):
    typed(
        "site init north --data north.csv --name north --target died --loss logistic --features age,dose --budget 100"
    )
    found = {command: typed(command) for command in NOT_UNDERSTOOD}
    wrong = {
        command: said
        for command, said in found.items()
        if said[:2] != (2, "") or NOT_UNDERSTOOD[command].lower() not in said[2].lower()
    }
    assert wrong == {}


def test_a_site_without_all_classes_takes_part_and_a_run_without_them_is_refused(typed):
    for name in ("north", "east", "west"):
        frame = pd.read_csv(f"{name}.csv")
        if name != "west":
            frame.assign(died="no").to_csv(f"{name}.csv", index=False)
    assert play(typed, DIED, "--prior-precision 1")[0] == 0
    assert load_server("run").spec.classes == ("no", "yes")
    code, _, err = typed("server init alone north/hello.npz east/hello.npz")
    assert code == 3
    assert "column 'died' has one level, 'no', at all sites" in err


def test_the_final_message_is_the_result_and_ends_as_fit_does(typed):
    """Where the rounds have run out every command says so by its exit code; the broken twin has more of them."""
    ended, told, _ = play(typed, DIED, "--rounds 2")
    fitted, _, _ = typed(f"fit {' '.join(f'{n}.csv' for n in SITES)} --target died --features age,dose --rounds 2")
    others = "server status run", "site step north run/final.npz", "server step run", "server status run --out m.npz"
    assert [ended, fitted, *(typed(command)[0] for command in others)] == [1] * 6
    assert typed(f"fit {' '.join(f'{n}.csv' for n in SITES)} --target died --features age,dose")[0] == 0
    at_site = json.loads(typed("site step north run/final.npz --json")[1])
    counts = {told["rounds"], told["table"]["rounds"], at_site["rounds"], at_site["table"]["rounds"]}
    assert counts == {load_server("run").exchanges}
    result = final_result(Message.read("run/final.npz"), load_server("run"))
    assert sorted(result.sites) == sorted(SITES)
    assert told["status"] == result.status.name == "ROUND_LIMIT"
    assert result.certificate is not None


def test_the_same_command_again_is_another_run(typed):
    """Sites, options and numbers of rows are the same, labels perhaps not: messages must not mix."""
    introduce(typed, f"{OPTIONS} {DIED}")
    start = "server init {} north/hello.npz east/hello.npz --method PVI --prior-precision 1 --penalize-intercept"
    for run in ("one", "two"):
        assert typed(start.format(run))[0] == 0
    assert typed("site step north one/broadcast-0001.npz")[0] == 0
    code, _, err = typed("server step two north/reply-north-0001.npz")
    assert code == 3
    assert "run must be" in err
    code, _, err = typed(start.format("one"))
    assert code == 2
    assert "one holds another run" in err
    for run in ("three", "four"):  # broken twin: with a seed they are one
        assert typed(start.format(run) + " --seed 1")[0] == 0
    assert load_server("three").spec.run == load_server("four").spec.run != load_server("one").spec.run


def test_replies_come_one_by_one_and_status_says_who_is_missing(typed):
    begun(typed)
    for name in SITES:
        assert typed(f"site step {name} run/broadcast-0001.npz")[0] == 0
    second, first, last = SITES
    code, out, _ = typed(f"server step run {second}/reply-{second}-0001.npz --json")
    told = json.loads(out)
    assert (code, told["written"], told["waits_for"]) == (0, "run/broadcast-0001.npz", 1)
    assert told["answered"] == [second]
    assert sorted(told["missing"]) == sorted([first, last])
    out = typed("server status run")[1]
    assert f"of {', '.join(sorted([first, last]))}; {second} answered" in out
    told = json.loads(typed(f"server step run --without {first},{last} --json")[1])
    assert told["written"] == "run/broadcast-0002.npz"
    assert told["left_out"] == [{"round": 1, "sites": sorted([first, last])}]
    assert "left out" in typed("server status run")[1]
    assert typed("server step run --partial")[0] == 2  # nobody has answered
    assert typed("server step run --without nort")[0] == 2


def test_a_reply_replaces_nothing_that_somebody_needs(typed, tmp_path):
    begun(typed)
    assert typed("site step north run/broadcast-0001.npz")[0] == 0
    before = kept(tmp_path)
    code, _, err = typed("site init north --data north.csv --name north --target died --loss logistic")
    assert (code, "has not ended" in err) == (2, True)
    Path("link").symlink_to("north")
    own = ["state.npz", "ledger.jsonl", "design-0a.npz", "hello.npz", "site.json", "final.npz"]
    own += [".site.lock", ".server.lock", ".lock"]
    taken = ["north.csv", "run/broadcast-0001.npz", *(f"{at}/{name}" for at in ("north", "link") for name in own)]
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")
        taken.append("pipe")
    for name in (*taken, "east/../north/state.npz", "east"):
        code, out, err = typed(f"site step north run/broadcast-0001.npz --out {name}")
        assert (code, out) == (2, ""), name
        assert "it would be lost" in err or "is not a file" in err, name
    Path("link").unlink()
    assert kept(tmp_path) == before
    assert "pipe" not in taken or stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert typed("site step north run/broadcast-0001.npz --out north/mine.npz")[0] == 0


def test_a_full_disk_is_named_by_the_file_that_did_not_fit(typed, monkeypatch):
    begun(typed)

    def fsync(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    code, _, err = typed("site step north run/broadcast-0001.npz")
    assert (code, "state.npz" in err) == (2, True)


def test_one_command_does_a_whole_run_and_goes_on_with_one(typed):
    """Every message is that of the steps, to the last byte; the broken twin has another seed."""
    introduce(typed, f"{OPTIONS} {DIED}")
    for name in SITES:
        shutil.copytree(name, f"by-hand-{name}")
        shutil.copytree(name, f"begun-{name}")
    code, told, _ = play(typed, DIED, "--seed 1 --tol 1e-3")
    end = Message.read("run/final.npz").digest  # of all but the seal: each server has its own key
    begun = " ".join(f"begun-{name}" for name in SITES)
    hellos = " ".join(f"begun-{name}/hello.npz" for name in SITES)
    assert typed(f"server init begun {hellos} --seed 1 --tol 1e-3")[0] == 0
    assert typed("site step begun-north begun/inquiry-0001.npz --out answer.npz")[0] == 0
    assert typed("server step begun answer.npz")[0] == 0  # interrupted there
    hand = " ".join(f"by-hand-{name}" for name in reversed(SITES))
    for command in (
        f"server run begun {begun}",
        f"server run alone {hand} --seed 1 --tol 1e-3",
        f"server run begun {begun}",
    ):
        found, out, err = typed(f"{command} --json")
        assert (found, json.loads(out)["mean"]) == (code, told["mean"]) == (0, told["mean"]), err
        assert Message.read(f"{command.split()[2]}/final.npz").digest == end
        assert "exchanges" in err
    assert typed("site step by-hand-east alone/final.npz")[0] == 0
    for name in SITES:
        shutil.rmtree(name)
    introduce(typed, f"{OPTIONS} {DIED}")
    assert typed(f"server run other {' '.join(SITES)} --seed 2 --tol 1e-3 --no-progress")[0] == 0
    assert Message.read("other/final.npz").digest != end
