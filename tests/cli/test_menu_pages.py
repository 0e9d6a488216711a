"""The commands of the pages about models run on R's data at four unequal sites, and print R's numbers."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from oracles.menu import HERE, read, table  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("models", "answers", "survival", "groups", "design")
FILES = {
    "trees": ("kinds", "gamma, log"),
    "budworm": ("kinds", "probit of trials"),
    "quine": ("ordinal", "quine"),
    "epil": ("ordinal", "epil"),
    "housing": ("ordinal", "housing"),
    "lung": ("survival", "lung"),
    "birthwt": ("answers", "logistic"),
}
PRINTED = {
    "quine": ("ordinal", "quine", "(intercept)"),
    "epil": ("ordinal", "epil", "(intercept)"),
    "lung.csv --client site --formula 'Surv(time, status == 2) ~ age + sex + ph.ecog'": ("survival", "lung", None),
    "housing": ("ordinal", "housing", None),
    "trees": ("kinds", "gamma, log", "(intercept)"),
    "budworm": ("kinds", "probit of trials", "(intercept)"),
}
"""Of a command that names a file, R's fit, and the row of the table that has R's first coefficient."""


def commands(page):
    """Return the lines of a page's shell blocks."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.strip().splitlines()]


def written(folder):
    """Write R's data as files with a column of sites."""
    for name, (group, case) in FILES.items():
        found = table(read(group)[case])
        for column in found.select_dtypes("category"):
            found[column] = found[column].astype(str)
        found.to_csv(folder / f"{name}.csv", index=False)
    mixed = json.loads((HERE / "menu_mixed.json").read_text())
    for name, group in (("sleepstudy", "Subject"), ("bacteria", "ID")):
        rows = pd.DataFrame(mixed["tables"][name])
        codes = pd.factorize(rows[group])[0]
        rows["site"] = np.array(list("ABCD"))[np.searchsorted([0.1, 0.3, 0.6], (codes + 0.5) / (codes.max() + 1))]
        rows.to_csv(folder / f"{name}.csv", index=False)


@pytest.mark.parametrize("page", [page for page in PAGES if (DOCS / f"{page}.md").exists()])
def test_the_commands_of_a_page_run(page, bayesadmm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    for line in commands(page):
        program, *arguments = shlex.split(line.split("  #")[0])
        assert program == "bayesadmm"
        code, out, err = bayesadmm(*arguments)
        assert code == 0, f"{line}\n{err}"
        for name, (group, case, _) in PRINTED.items():
            if not shlex.join(arguments[1:]).replace('"', "'").startswith(name) or arguments[0] != "fit":
                continue
            fit = read(group)[case]
            if " ".join(fit["formula"].split()).replace(" * ", "*") in line.replace(" * ", "*"):
                numbers = re.findall(r"-?\d+\.\d{4}\b", out)
                assert {f"{value:.4f}" for value in fit["coef"]} <= set(numbers), line


def test_sleepstudy_is_lme4s(bayesadmm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    fit = json.loads((HERE / "menu_mixed.json").read_text())["fits"]["sleepstudy REML"]
    given = ("sleepstudy.csv", "--client", "site", "--formula", "Reaction ~ Days + (1 | Subject)", "--json")
    code, out, err = bayesadmm("fit", *given)
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)["coefficients"]}
    found = [(rows[name]["coef"], rows[name]["std_err"]) for name in ("(intercept)", "Days")]
    assert pytest.approx(np.array([fit["coef"], fit["std_err"]]), rel=1e-8) == np.array(found).T
