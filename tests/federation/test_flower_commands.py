"""`bayesadmm flower new`, and the keys of the app that it writes."""

import tomllib

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.cli._run_files import load_site
from bayesadmm_np.cli.flower import keys, read_plan
from bayesadmm_np.federation import Coordinator
from bayesadmm_np.federation.dispatch import Request, answer
from bayesadmm_np.splitting.state import digest
from oracles.overrides import OPTIONS

ALLOWED = OPTIONS.split()


@pytest.fixture
def trial(bayesadmm, tmp_path):
    assert bayesadmm("flower", "new", tmp_path / "trial", "--sites", 3)[0] == 0
    return tmp_path / "trial"


def config(trial):
    return tomllib.loads((trial / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_new_writes_an_app_whose_every_key_is_explained_and_read(trial):
    written = (trial / "app" / "pyproject.toml").read_text()
    found = config(trial)
    assert found == {name: default for name, (default, _) in keys(3).items()}
    for name, (_, meaning) in keys(3).items():
        assert f"# {meaning}\n{name} = " in written
    plan = read_plan(found)
    assert plan.sites == 3
    assert plan.task.method.name == "guarded Newton"
    assert plan.task.prior(4).natural.linear.shape == (4,)
    for name in found:
        with pytest.raises(ValueError, match=name):
            read_plan({key: value for key, value in found.items() if key != name})


def test_a_posterior_is_by_the_method_with_the_fewest_rounds(trial):
    """The twin takes maximum likelihood; all have a guard."""
    chosen = read_plan({**config(trial), "inference": "posterior"}).task
    assert chosen.method("Logistic", 33, 1) == chosen.method("Softmax", 42, 7) == ba.Guarded(ba.methods.JointNewton())
    assert (
        chosen.method("Logistic", 34, 1)
        == chosen.method("Softmax", 70, 7)
        == ba.Guarded(ba.Accelerated(ba.methods.PVI()))
    )
    assert np.array_equal(chosen.prior(2).precision, np.eye(2))
    diagonal = read_plan({**config(trial), "inference": "posterior", "family": "diagonal"}).task
    assert diagonal.method("Logistic", 362, 1) == ba.Guarded(ba.Sketched(ba.methods.PVI(), "full"))
    assert diagonal.method("Logistic", 363, 1) == ba.Guarded(ba.Accelerated(ba.methods.PVI(gamma=0.4)))
    assert read_plan(config(trial)).task.method == ba.Guarded(ba.methods.Newton())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"inference": "evidence"}, "inference must be auto or likelihood or posterior, got 'evidence'"),
        (
            {"inference": "likelihood", "method": "PVI"},
            "^inference must be auto or posterior with a method other than auto, got likelihood",
        ),
        (
            {"inference": "posterior", "family": "fixed"},
            "^family must be full or diagonal for a posterior whose method is auto, got fixed",
        ),
        ({"family": "triangular"}, "family must be one of full, diagonal, .* got 'triangular'"),
        ({"family": "Gamma"}, r"Beta, BlockDiagonalGaussian, Dirichlet, Gamma are set in Python: server_app\(Plan\("),
        ({"method": "PVX"}, "PVI"),
        ({"sites-per-round": 4}, "sites-per-round must be at most"),
        ({"participation": 0.0}, "participation must lie"),
        ({"deadline": -1.0}, "deadline must be"),
        ({"sites": 2.9}, "sites must be an integer"),
        ({"rounds": True}, "rounds must be an integer"),
        ({"accelerate": "False"}, "accelerate must be true or false, as in accelerate = false, got 'False'"),
        ({"keyed": 0}, "keyed must be true or false"),
        ({"tol": "small"}, "tol must be a number"),
    ],
)
def test_a_wrong_value_of_a_key_is_named(change, complaint, trial):
    with pytest.raises(ValueError, match=complaint):
        read_plan({**config(trial), **change})


def test_sites_hold_no_rows_and_the_app_none_of_the_sites(trial):
    assert sorted(path.name for path in (trial / "sites" / "site1").iterdir()) == [
        "hello.npz",
        "key.hex",
        "sent.jsonl",
        "site.json",
    ]
    assert sorted(path.name for path in (trial / "app").rglob("*") if path.is_file()) == [
        *("__init__.py", "client_app.py", "pyproject.toml", "server_app.py"),
    ]
    site, hello = load_site(trial / "sites" / "site2", None)
    assert site.data.introduction()["rows"] == hello.header["rows"] == 120
    for path in (trial / "app" / "federation").glob("*.py"):
        compile(path.read_text(), str(path), "exec")


def test_a_site_whose_rows_have_changed_does_not_say_hello(trial):
    with open(trial / "data" / "site2.csv", "a") as file:
        file.write("1,1,1\n")
    said = answer(Request("7"), trial, lambda spec: load_site(trial / "sites" / "site2", spec))
    assert said.refused
    assert "must be those of hello.npz" in said.note


def test_sites_of_files_are_called_as_their_files(bayesadmm, tmp_path):
    for name in ("north", "south"):
        np.savetxt(tmp_path / f"{name}.csv", [[1, 0], [2, 1], [0, 1]], delimiter=",", header="x,died", comments="")
    data = [item for name in ("north", "south") for item in ("--data", tmp_path / f"{name}.csv")]
    assert bayesadmm("flower", "new", *ALLOWED, tmp_path / "two", *data, "--target", "died")[0] == 0
    assert load_site(tmp_path / "two" / "sites" / "south", None)[0].name == "south"
    assert config(tmp_path / "two")["sites"] == 2
    code, _, err = bayesadmm("flower", "new", *ALLOWED, tmp_path / "three", *data)
    assert code == 2
    assert "--target" in err


WARDS = {
    "north": "dose,ward,old,died\n1.5,a,yes,0\n2.5,c,no,1\n0.5,a,yes,0\n,b,no,1\n",
    "south": "dose,ward,old,died\n1.0,c,no,1\n3.5,d,yes,0\n2.0,d,no,1\n",
}


def wards(folder, **tables):
    """Options that name the tables; the sites have other levels."""
    for name, text in {**WARDS, **tables}.items():
        (folder / f"{name}.csv").write_text(text)
    return [item for name in WARDS for item in ("--data", folder / f"{name}.csv")] + ["--target", "died"]


def test_sites_with_text_are_those_of_site_init(bayesadmm, tmp_path):
    """The files stay where they are; levels are agreed on when the run begins, of all sites."""
    code, _, err = bayesadmm("flower", "new", *ALLOWED, tmp_path / "fed", *wards(tmp_path), "--dropna")
    assert code == 0, err
    sites = [load_site(tmp_path / "fed" / "sites" / name, None) for name in WARDS]
    server = Coordinator.start([hello for _, hello in sites], read_plan(config(tmp_path / "fed")).task)
    # the row whose dose is missing is not there, and so is its ward
    assert server.spec.features == ("dose", "ward[T.c]", "ward[T.d]", "old[T.yes]", "intercept")
    assert server.missing_rows == {"north": 1}
    made = sites[1][0].data.join(server.spec, "south", None).worker.loss
    design = [[1, 1, 0, 0, 1], [3.5, 0, 1, 1, 1], [2, 0, 1, 0, 1]]
    assert digest(made) == digest(ba.losses.Logistic(np.array(design, dtype=float), np.array([1.0, 0.0, 1.0])))
    assert {name: (tmp_path / f"{name}.csv").read_text() for name in WARDS} == WARDS


def test_the_servers_choices_are_keys_of_the_app(bayesadmm, tmp_path):
    assert bayesadmm("flower", "new", *ALLOWED, tmp_path / "fed", *wards(tmp_path), "--dropna")[0] == 0
    known = config(tmp_path / "fed")
    assert read_plan(known).task.choices is None
    changed = {"reference": "ward=c, old=yes", "ignore-case": True, "site-intercepts": True, "reference-site": "south"}
    assert read_plan({**known, **changed}).task.choices == {
        "reference": {"ward": "c", "old": "yes"},
        "ignore_case": True,
        "site_intercepts": True,
        "reference_site": "south",
    }


@pytest.mark.parametrize(
    ("change", "more", "complaint"),
    [
        ({}, ["--categorical", "wart,old"], "did you mean 'ward'"),
        (
            {"north": "dose,ward,old,died\n1,c,yes,0\n2,c,no,1\n", "south": "dose,ward,old,died\n1,c,no,1\n"},
            ["--categorical", "ward,old"],
            "column 'ward' has one level, 'c', at all sites; leave it out",
        ),
        ({}, ["--categorical", "ward,old", "--heart-disease"], "--heart-disease brings its own data"),
    ],
)
def test_what_is_wrong_with_text_is_said(change, more, complaint, bayesadmm, tmp_path):
    code, _, err = bayesadmm("flower", "new", *ALLOWED, tmp_path / "fed", *wards(tmp_path, **change), "--dropna", *more)
    assert code == 2
    assert complaint in " ".join(err.split())
    assert not (tmp_path / "fed").exists()


ROWS = {"north": "dose,age,died\n1.5,40,0\n2.5,50,1\n0.5,60,0\n", "south": "died,age,dose\n1,41,1.0\n0,51,3.5\n"}
COLUMNS = {
    "lacks": ({"south": "died,dose\n1,1\n0,2\n"}, [], "south.csv lacks age, other than"),
    "has more": ({"south": "dose,age,sex,died\n1,2,0,1\n2,3,1,0\n"}, [], "south.csv also has sex, other than"),
    "lacks the target": ({"south": "dose,age\n1,2\n"}, [], "south.csv has no column 'died'"),
    "other labels": (
        {"north": "dose,age,died\n1,2,a\n2,3,b\n", "south": "dose,age,died\n1,2,b\n2,3,c\n"},
        [],
        "column 'died' holds 3 classes at all sites ('a', 'b', 'c'), and logistic needs two",
    ),
    "a gap": ({"south": "dose,age,died\n1,,0\n2,3,1\n"}, [], "site south: missing values in age (1)"),
    "semicolons": (
        {"south": "dose;age;died\n1;2;0\n"},
        [],
        "'dose;age;died'; if it is separated otherwise, say so by --separator",
    ),
    "cells too many": ({"south": "dose,age,died\n1,2,0,4\n"}, [], "than the header; if it is separated otherwise"),
    "text": (
        {"south": "dose,age,died\n1,old,0\n2,young,1\n"},
        ["--categorical", "dose"],
        "site 'south': column 'age' holds 'old', 'young' where site 'north' has numbers",
    ),
}


@pytest.mark.parametrize("categorical", [[], ["--categorical", "age"]])
def test_columns_in_another_order_are_those_of_the_first_table(categorical, bayesadmm, tmp_path):
    data = wards(tmp_path, **ROWS)
    code, _, err = bayesadmm("flower", "new", *ALLOWED, tmp_path / "fed", *data, *categorical)
    assert code == 0, err
    sites, hellos = zip(*(load_site(tmp_path / "fed" / "sites" / name, None) for name in ROWS), strict=True)
    spec = Coordinator.start(hellos, read_plan(config(tmp_path / "fed")).task).spec
    assert spec.features[0] == "dose"
    assert [site.data.join(spec, site.name, None).worker.loss.X[0, 0] for site in sites] == [1.5, 1.0]


@pytest.mark.parametrize("kind", COLUMNS)
def test_tables_that_cannot_run_together_are_refused_by_the_name_of_file_or_site(kind, bayesadmm, tmp_path):
    tables, options, complaint = COLUMNS[kind]
    code, _, err = bayesadmm(
        "flower", "new", *ALLOWED, tmp_path / "fed", *wards(tmp_path, **{**ROWS, **tables}), *options
    )
    assert code == 2
    assert complaint in err
    assert not (tmp_path / "fed").exists()


def test_made_up_sites_have_no_text(bayesadmm, tmp_path):
    code, _, err = bayesadmm("flower", "new", *ALLOWED, tmp_path / "fed", "--categorical", "a")
    assert code == 2
    assert "--categorical: of which tables?" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "--data: of which sites?"), (["--sites", 2, "--elsewhere", 2], "--sites: made-up sites stand alone")],
)
def test_no_sites_are_made_up_that_nobody_asked_for(bayesadmm, tmp_path, options, words):
    code, _, err = bayesadmm("flower", "new", tmp_path / "fed", *options)
    assert (code, words in err, (tmp_path / "fed").exists()) == (2, True, False)


def test_what_new_refuses_leaves_nothing_behind(bayesadmm, tmp_path):
    rows = tmp_path / "north.csv"
    rows.write_text("dose,died\n1.5,0\n2.5,1\n0.5,0\n")
    folder, own = tmp_path / "fed", tmp_path / "own"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    for where in (folder, own):
        code, _, err = bayesadmm(
            "flower", "new", *ALLOWED, where, "--data", rows, "--target", "died", "--features", "doze"
        )
        assert code == 2
        assert "did you mean 'dose'" in err
    assert not folder.exists()
    assert [path.name for path in own.iterdir()] == ["notes.txt"]
    # and so the corrected command is not in its own way
    assert (
        bayesadmm("flower", "new", *ALLOWED, folder, "--data", rows, "--target", "died", "--features", "dose")[0] == 0
    )
