"""The table of attacks: each part of each kind that leaves a party, and the test that attacks it.

A part that the library can send and that is not in the table fails here. `KEPT` are parts from which no row is found
under the usual rules; `OPEN` those from which a row is found today, so that docs/security.md must list them.
"""

from pathlib import Path

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.federation import GLMTable, GLMTask, SigningKey, Site
from bayesadmm_np.glm.questions import QUESTIONS
from oracles.couriers import started
from oracles.kinds_sent import kinds_sent

ROOT = Path(__file__).parents[2]
HERE = "tests/attacks/"
ECHO = f"{HERE}test_inventory.py::test_parts_that_depend_on_no_row"
"""The party's own settings, or what it was sent."""
ROW = f"{HERE}test_single_rows.py::test_each_part_of_each_answer"
FEW = f"{HERE}test_single_sums.py::test_the_rows_of_a_site_of_few_rows"
POINT = f"{HERE}test_single_sums.py::test_a_broadcast_at_a_far_point"
WORDS = f"{HERE}test_cells.py::"
RULE = "tests/federation/test_disclosure.py::"
COUNTS = "tests/federation/test_evaluation_by_files.py::"
MANY = f"{HERE}test_many_sums.py::"
NETWORK = f"{HERE}test_first_layers.py::test_a_crafted_first_layer_gives_rows"
COMPARED = f"{HERE}test_single_sums.py::test_the_outermost_row_by_comparisons"

KEPT = {
    ECHO: "design: moves noise_variance | least_squares: moves noise_variance | answer: run number name site answers "
    "| lost: run round site answers | glmreply: run round site answers "
    "| networkreply: run round site answers | hello: site identity loss dim features classes table "
    "| hello.table: kind described weights is_list | hello.table.described: formula "
    "| copy: run site counted past | broadcast: run round counted ask certify | final: run round counted",
    ROW: "design: root sums target weight n_rows offset | rows: root has_walls "
    "| least_squares: root shift total_weight log_weight n_rows | statistics: n_rows weight log_weight loss null_loss "
    "pearson meats n_clusters constant saturated_loss | own_fit: mean root span dispersion df_residual | firth: pull",
    f"{HERE}test_single_sums.py::test_the_one_patient_of_a_level": "vector: natural",
    f"{HERE}test_groups.py::test_a_group_of_a_size_of_its_own": "profile: root first second log_det n_groups n_rows",
    f"{HERE}test_rows_in_sums.py::test_the_row_of_the_only_event": "derivatives: gradient",
    f"{HERE}test_rows_in_sums.py::test_the_row_at_a_point": "derivatives: hessian",
    "tests/design/test_menu_design.py::test_a_site_keeps_back_a_polynomial_that_tells_a_row": (
        "hello.table.described.moments: alpha beta"
    ),
    f"{HERE}test_ordered.py::test_the_row_of_a_class_of_one": "apart: gradient hessian",
    FEW: "ask: solve own | vector: sketch | glmreply: solved | glmreply.solved: status well_posed",
    POINT: "glmreply: certificate | glmreply.certificate: at_mean curvature_error | vector: sums errors curvature "
    "| sums: errors curvature_error",
    f"{HERE}test_single_sums.py::test_a_bread_that_one_row_alone_fills": "statistics: meats",
    f"{HERE}test_single_sums.py::test_an_own_fit_that_rests_on_two_rows": "own_fit: root",
    f"{HERE}test_single_sums.py::test_the_sums_of_a_subset_of_one": "separation: value gradient hessian",
    f"{HERE}test_single_sums.py::test_few_values_are_their_recurrence": "hello.table.described.moments: alpha beta",
    f"{HERE}test_single_sums.py::test_two_rows_are_their_mean_and_spread": "hello.table.described: moments "
    "| hello.table.described.moments: mean squares count | hello: rows weight "
    "| hello.table.described: n_rows n_complete",
    f"{WORDS}test_a_hello_names_no_text_of_few_rows": "hello.table: orders "
    "| hello.table.described: columns lacking renamed | hello.table.described.columns: kind missing is_numeric "
    "infinite levels withheld is_ordered rewritten code",
    f"{WORDS}test_a_refusal_over_a_network_quotes_no_cell": "answer: refused content | answer.refused: codes columns "
    "| code: closed private no_sums message rows state spent busy failed copied again uncounted no_distribution",
    f"{RULE}test_over_a_network_the_server_reads_the_rule_and_no_number": "code: minimum_rows minimum_count "
    "minimum_class_count most_parameters allow most_evaluations combination",
    "tests/federation/test_ledger.py::test_a_folder_tells_some_twenty_bits_by_refusals": "code: point budget",
    f"{RULE}test_a_run_of_two_sites_is_not_answered": "code: minimum_sites | broadcast: spec mixed "
    "| final: objective certificate table spec mixed status message",
    NETWORK: "code: trusted_server | networkreply: value solved",
    f"{COUNTS}test_no_sum_over_predictions_tells_an_outcome": "counts: spans",
    f"{COUNTS}test_a_site_says_its_counts_once_and_again_the_same": "counts: run site event "
    "| command: evaluate, site evaluate",
    f"{WORDS}test_a_report_shows_no_cell": "command: report, site init, site step, site rules",
    f"{HERE}test_inventory.py::test_commands_that_write_no_message": "command: certify, compare, derive, fit, "
    "flower, lessons, play, predict, reproduce, server, site, summary",
    f"{HERE}test_tensors_stay.py::test_replies_of_a_posterior_between_sites_hold_sums_of": "vector: natural",
    f"{HERE}test_single_sums.py::test_the_gradient_of_the_reach_of_certificates": "glmreply.certificate: reach",
    f"{HERE}test_single_sums.py::test_the_gradient_of_the_reach_of_a_question": "sums: reach",
    f"{HERE}test_combinations.py::test_the_patient_whose_combination_nobody_shares": "vector: site",
    f"{HERE}test_differencing.py::test_a_pair_of_runs_is_refused_exactly_where_it_tells_few_rows": "code: earlier",
    f"{MANY}test_an_honest_run": "ask: evaluate sums | vector: site sums | glmreply: value edge "
    "| glmreply.solved: iterations residual edge",
    f"{MANY}test_ten_points_that_are_asked_for": "derivatives: value gradient hessian | sums: value gradient hessian "
    "| firth: value gradient hessian",
}
BESIDE = {f"{HERE}test_agreement.py", f"{HERE}test_lying_sites.py"}
"""Attacks by forged specs and by sites that lie: they are about no part of what leaves a site."""
OPEN = {
    f"{WORDS}test_describe_shows_the_largest_value": "command: describe",
    COMPARED: "separation: opposes moves stands",
    f"{HERE}test_single_sums.py::test_two_subsets_that_differ_by_a_row": "separation: gradient hessian",
}


def kinds(table):
    """Parts in a table, as "kind: part"."""
    found = set()
    for listed in table.values():
        for group in listed.split(" | "):
            kind, _, names = group.partition(": ")
            found |= {f"{kind}: {name}" for name in (names.split(", ") if kind == "command" else names.split())}
    return found


def lost(tests):
    """Tests that no file has."""
    names = [(ROOT / name.partition("::")[0], name.partition("::")[2]) for name in tests]
    return [(path, name) for path, name in names if not path.exists() or f"\ndef {name}" not in path.read_text()]


def test_every_part_that_can_be_sent_has_an_attack():
    sent = kinds_sent()
    assert sent - kinds(KEPT) - kinds(OPEN) == set()
    assert {one for one in kinds(KEPT) | kinds(OPEN) if not one.startswith("networkreply")} - sent == set()
    made_up = {**QUESTIONS, "rows_at": QUESTIONS["rows"]}  # the twin: a question without an attack
    assert kinds_sent(made_up) - kinds(KEPT) - kinds(OPEN) == {"rows_at: root", "rows_at: has_walls"}


def test_every_attack_in_the_table_is_there():
    assert lost([*KEPT, *OPEN]) == []
    assert lost(["tests/attacks/test_cells.py::test_nothing_of_the_kind", "tests/none.py::test_x"])  # the twin
    names = [path.name for path in (ROOT / HERE).glob("test_*.py")]
    known = {Path(one.partition("::")[0]).name for one in [*KEPT, *OPEN, *BESIDE]} | {Path(__file__).name}
    assert set(names) <= known


def messages_of(seed):
    """Headers of a hello, an answer, a reply and a request for a copy, of rows that a seed chooses; and a server's."""
    rng = np.random.default_rng(seed)
    rows = {"died": np.arange(40) % 2, "age": rng.normal(60.0, 10.0, 40), "dose": rng.normal(size=40)}
    sites = [Site(name, GLMTable(rows, "died ~ age + dose"), key=KEYS[name]) for name in "ABC"]
    task = GLMTask(ba.Guarded(ba.methods.Newton()), lambda d: ba.families.FullGaussian(np.zeros(d), 0.0), asks=True)
    server, headers = started(sites, task), {"hello": sites[0].hello().header}
    while "reply" not in headers:
        asked = server.broadcast()
        sites, said = zip(*(site.step(asked) for site in sites), strict=True)
        server = server.step(said)
        headers |= {said[0].kind: said[0].header, asked.kind: asked.header}
    return headers


KEYS = {name: SigningKey(name.encode() * 32) for name in "ABC"}
OWN = {
    "hello": ("site", "identity", "loss", "dim", "features", "classes"),
    "answer": ("number", "name", "site"),
    "reply": ("round", "site"),
    "broadcast": ("round", "counted", "ask", "certify"),
}


def test_parts_that_depend_on_no_row():
    """Two sites with other rows, of the same number, say the same there; the twins are a value, and a run's digest."""
    first, second = (messages_of(seed) for seed in (1, 2))
    for kind, names in OWN.items():
        for name in names:
            assert first[kind][name] == second[kind][name]
    described = [one["hello"]["table"] for one in (first, second)]
    assert described[0] == described[1]  # of `died ~ age + dose` there are no moments
    assert first["reply"]["solved"] != second["reply"]["solved"] or first["reply"]["value"] != second["reply"]["value"]


def test_commands_that_write_no_message():
    """Rows are read in this process, and no module of these commands makes a message of a site."""
    for name in ("certify", "compare", "derive", "fit", "lessons", "play", "predict", "reproduce", "summary"):
        text = (ROOT / f"bayesadmm_np/cli/{name}.py").read_text()
        assert not [word for word in SENDS if word in text]
    assert [word for word in SENDS if word in (ROOT / "bayesadmm_np/cli/_run_files.py").read_text()]  # the twin


SENDS = ("sent(", "put_away(", "step_site(", ".sealed(")
