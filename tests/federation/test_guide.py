"""The commands of docs/federation.md, as they stand and in order, by three hospitals; figures of docs/flower.md."""

import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")

from bayesadmm_np.demos import hospitals

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")


def section(title):
    return GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(text):
    """The lines of all shell blocks, as lists of words."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines() if line.startswith("bayesadmm")]


@pytest.fixture
def play(bayesadmm, tmp_path, monkeypatch):
    """Run commands beside the hospitals' files, where each has to end with this code; return what was said."""
    monkeypatch.chdir(tmp_path)
    for path in hospitals.FOLDER.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())

    def played(*lines, code=0):
        said = [bayesadmm(*line) for line in lines]
        assert [(line, err) for line, (got, _, err) in zip(lines, said, strict=True) if got != code] == []
        return "".join(out + err for _, out, err in said)

    return played


def test_the_first_try_prints_the_table_of_the_page(play):
    out = play(*commands(section("First try: one machine")))
    shown = re.search(r"```text\n(.*?)\.\.\.", section("First try: one machine"), flags=re.DOTALL)[1]
    assert shown in out
    assert "every coefficient is within" in out
    assert "Method:          guarded Newton, 8 rounds" in out  # "about eight exchanges"


def answered(play, sites=("Ghent", "Lund", "Porto")):
    """Let sites answer the server's newest message, and the server take the answers; return what the server said."""
    (written,) = re.findall(r"^written +(\S+)", play(["server", "step", "run"]), flags=re.MULTILINE)
    said = [play(["site", "step", name.lower(), written]) for name in sites]
    return play(["server", "step", "run", *(re.search(r"^written +(\S+)", one)[1] for one in said)])


def test_the_steps_of_the_page_end_with_the_table_whoever_is_late_or_has_lost_a_folder(play, tmp_path):
    steps = commands(section("Between machines, step by step"))
    ends = next(i for i, line in enumerate(steps) if line[-1] == "run/final.npz")
    play(*steps[:ends])
    assert (tmp_path / "run" / "broadcast-0001.npz").exists()
    for name in ("ghent", "lund", "porto"):
        play(["site", "step", name, "run/broadcast-0001.npz"])
    play(["server", "step", "run", "ghent/reply-Ghent-0001.npz", "lund/reply-Lund-0001.npz"])
    late = play(*commands(section("When a site is late")))
    assert "made no step" in late
    assert "broadcast 2 of Ghent, Lund, Porto" in late
    play(["server", "step", "run", "porto/reply-Porto-0001.npz"], code=3)  # its round is closed
    answered(play)
    (tmp_path / "porto" / "state.npz").unlink()
    play(*commands(section("When a message or a folder is lost")))
    while not (tmp_path / "run" / "final.npz").exists():
        answered(play)
    assert "guaranteed" in play(*steps[ends:])
    assert (tmp_path / "model.npz").exists()
    assert "took part in another run" in play(["server", "run", "second", "ghent", "lund", "porto"], code=2)
    assert not (tmp_path / "second").exists()
    for line in steps[1:4]:  # a second analysis, in the same folders; the rounds before have cost Lund's small budget
        play([*line[:-1], "died ~ age", "--budget", "2"])
    play(["server", "run", "second", "ghent", "lund", "porto"])


def test_columns_that_differ_are_refused_in_the_words_of_the_page(play, tmp_path):
    lund, porto = tmp_path / "lund.csv", tmp_path / "porto.csv"
    kept = lund.read_text(), porto.read_text()
    lund.write_text(kept[0].replace("surgical", "Surgical"))
    inits = commands(section("First try: one machine"))[:3]
    play(*inits)
    assert "differ in case, blanks or zeros alone" in play(["server", "run", "one", "ghent", "lund", "porto"], code=3)
    lund.write_text(kept[0])
    porto.write_text(kept[1].replace(",m,", ",male,").replace(",f,", ",female,"))
    play(*inits)
    said = play(["server", "run", "two", "ghent", "lund", "porto"], code=3)
    assert "column 'sex' holds 'female', 'male', none of which another site has" in said
    porto.write_text(kept[1])
    play(*inits)
    play(["server", "init", "run", "ghent/hello.npz", "lund/hello.npz", "porto/hello.npz"])
    lund.write_text(kept[0].replace("0,60,", "0,61,", 1))
    assert "the rows of site 'Lund'" in play(["site", "step", "lund", "run/inquiry-0001.npz"], code=3)


def test_the_sizes_of_messages_are_those_of_the_results_file():
    page = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks" / "results" / "flower_scale.json").read_text(encoding="utf-8"))
    size = {(one["family"], one["d"]): one["up"] / 1000 for one in found["bytes"]}
    assert f"100 coefficients | {size['full', 100]:.0f} kB with full covariance, {size['diagonal', 100]:.0f} kB" in page
    assert f"1000 coefficients | {size['full', 1000] / 1000:.0f} MB, and {size['diagonal', 1000]:.0f} kB" in page
    peak = {(one["family"], one["d"]): one["server"]["peak"] / 1000 for one in found["memory"]}
    assert f"2000 coefficients | {peak['full', 2000]:.1f} GB" in page
    seconds = {(one["sites"], one["d"]): one["server_seconds"] for one in found["server"]}
    assert f"1000 sites, 100 coefficients | {seconds[1000, 100]:.1f} s" in page
