"""`warcore plan` as a person and as a program meet it."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from toys import CONTEXT

from warcore.cli import main
from warcore.cli.plan import plan as command
from warcore.fence import NEXT_STEP, FenceReason

STEP_KEYS = ["mode", "runs_as", "batches", "latest_read", "whose", "records_at", "recorded"]
STEP_KEYS += ["owner", "fence", "reason", "detail", "next"]
TABLE = """\
STEP    RUNS   READS END   EVENT RECORDED                FENCE   OWNER
extend  eager  PRE_REPLAY  after the out-graph metadata  fine    target
decode  eager  PRE_REPLAY  after the out-graph metadata  fine    target
mixed   eager  PRE_REPLAY  nowhere: mode_not_extend      coarse  target
"""


@pytest.fixture
def plan(toy_site, capsys):
    """`warcore plan ARGS` with the toy model, in this process; (exit code, stdout, stderr)."""

    def run(*args):
        code = main(["plan", "--model", "toy", "--dtype", "float64", "--device", "host", *args])
        return (code, *capsys.readouterr())

    return run


# ---- for a person --------------------------------------------------------------------------------


def test_a_row_for_each_kind_of_step(plan):
    code, out, err = plan("--mixed")
    assert (code, err) == (0, "")
    assert out.startswith("toy with toy-rows on cpu (--host inline), overlap loop\n")
    assert f"\n\n{TABLE}" in out


def test_what_is_coarse_has_its_reason_and_what_to_do(plan):
    _, out, _ = plan("--mixed")
    finer = out[out.index("\nFiner:") :].splitlines()[2:]
    assert finer == [
        "    mixed: a step of prefill chunks and decodes together is always coarse",
        f"    Next: {NEXT_STEP[FenceReason.MODE_NOT_EXTEND]}",
    ]


def test_what_holds_for_every_step_is_said_once(plan):
    _, out, _ = plan("--fence", "coarse")
    assert out[out.index("Finer:") :].count("Next: ") == 1
    assert "every step: declarations do not count under --fence coarse\n" in out


def test_if_everything_is_fine_it_says_so(plan):
    code, out, _ = plan()
    assert code == 0
    assert out.endswith("\nFiner: every fence is fine.\n")


def test_what_each_batch_decides_is_not_said_to_be_fine(plan, toys, monkeypatch):
    hook = "prepare_prefill_shared_read_snapshot"
    monkeypatch.setattr(toys.RowMajor, hook, lambda *_: None, raising=False)
    assert plan()[1].endswith("\nFiner: every fence is fine, or decided per batch.\n")


def test_it_says_why_there_are_no_graphs(plan):
    assert (
        "Graphs: none: none is installed and switched on\n"
        "    Next: warcore list-plugins --kind graph_runner\n"
    ) in plan()[1]
    none = plan("--graph-runner", "none")[1]
    assert "\nGraphs: none: switched off by --graph-runner none\n\n" in none


def test_it_says_how_many_steps_are_captured_and_which_are_not(plan, graphs):
    assert "\nGraphs: toy-graphs captures 2 steps\n\n" in plan("--max-running-requests", "2")[1]
    some = plan("--max-running-requests", "2", "--graph-positions", "64")[1]
    assert (
        "\nGraphs: toy-graphs captures 1 step\n"
        "    a step runs eagerly if it attends to more than 64 positions, over all its requests\n"
        "      (--graph-positions N)\n\n"
    ) in some


def test_where_nothing_is_captured_the_cause_and_the_remedy_are_there(plan, graphs):
    assert (
        "\nGraphs: none: a step of 1 request attends to 64 positions, more than 1\n"
        "    Next: --graph-positions 64, or give the backend a graph_key\n"
    ) in plan("--graph-positions", "1")[1]


def test_a_graph_runner_that_could_not_be_asked_is_named_with_its_cause(plan, toy_site, graphs):
    toy_site.add("twin", {"graph_runner": {"toy-graphs": "nowhere:Nobody"}})
    _, out, err = plan()
    assert err == ""
    said = " ".join(out[out.index("Graphs:") : out.index("\nSTEP ")].split())
    assert said.startswith("Graphs: none: none can serve: toy-graphs (")
    assert "in conflict: twin 1.0 has a graph_runner of this name too" in said


def test_the_columns_are_explained(plan):
    head, *_ = TABLE.splitlines()
    _, out, _ = plan()
    explained = re.findall(r"^([A-Z][A-Z ]+[A-Z])  +[a-z]", out, re.MULTILINE)
    assert set(explained) < set(re.split("  +", head))
    assert {"READS END", "EVENT RECORDED", "OWNER"} == set(explained)


def test_votes_shows_each_reader_for_each_mode_and_the_stagers(plan):
    assert "VOTES" not in plan()[1]
    _, out, _ = plan("--votes")
    votes = out[out.index("VOTES") :].splitlines()
    assert votes[0].split() == ["VOTES", "backend:toy-rows"]
    assert votes[1].split() == ["extend", "PRE_REPLAY"]
    assert [line.split("  ")[0] for line in votes[1:6]] == [
        "extend",
        "decode",
        "mixed",
        "target verify",
        "draft extend",
    ]
    assert votes[6:] == ["snapshot       no", "stagers: none"]


def test_sentences_fold_and_no_line_that_is_to_be_copied_does(toys, plan, monkeypatch):
    monkeypatch.setattr("warcore.cli.plan._WIDTH", 40)
    _, out, _ = plan("--mixed", "--loop", "normal")
    sentences = out[out.index("OWNER   ") :]
    assert "\n    Next: --loop overlap\n" in sentences
    assert max(map(len, sentences.splitlines())) <= 40


# ---- for a program -------------------------------------------------------------------------------


def test_the_document_has_a_schema_and_the_same_keys_for_every_step(plan):
    code, out, err = plan("--json", "--mixed")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document) == ["schema", "warcore", "engine", "graphs", "steps", "votes", "stagers"]
    assert document["schema"] == 1
    assert list(document["graphs"]) == ["runner", "captures", "why", "next"]
    assert (document["graphs"]["runner"], document["graphs"]["captures"]) == (None, 0)
    assert document["engine"]["context_length"] == CONTEXT
    assert [list(step) for step in document["steps"]] == [STEP_KEYS] * 3
    assert document["steps"][2] == {
        "mode": "mixed",
        "runs_as": "eager",
        "batches": "all",
        "latest_read": "PRE_REPLAY",
        "whose": "backend:toy-rows",
        "records_at": None,
        "recorded": "nowhere: mode_not_extend",
        "owner": "target",
        "fence": "coarse",
        "reason": "mode_not_extend",
        "detail": "a step of prefill chunks and decodes together is always coarse",
        "next": "run without --mixed",
    }
    (votes,) = document["votes"]
    assert votes["plugin"] == "backend:toy-rows"
    assert votes["ends"]["draft_extend"] == "PRE_REPLAY"
    assert votes["snapshot"] is False


# ---- in the place of generate --------------------------------------------------------------------


def test_any_command_of_generate_can_be_planned(plan):
    words = "one two --raw --max-new-tokens 8 --temperature 0.5 --seed 3 --stop x --stats"
    assert plan(*shlex.split(words)) == plan()


PROMPTS = {
    "one": ("a",),
    "two": ("a", "b"),
    "two in a file": ("--prompts-file", "prompts"),
    "more rows": ("a", "--max-running-requests", "4"),
    "buckets": ("a", "--graph-buckets", "1,2"),
}


@pytest.mark.parametrize("args", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.usefixtures("graphs")
def test_the_engine_is_the_one_that_generate_makes_of_these_prompts(
    plan, generate, tmp_path, monkeypatch, args
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").write_text("a\n\nb\n")
    planned = json.loads(plan(*args, "--json")[1])
    short = ("--max-new-tokens", "2", "--ignore-eos", "--raw")
    found = json.loads(generate(*args, *short, "--device", "host", "--json").out)
    assert planned["engine"] == found["engine"]
    assert planned["graphs"]["captures"] == found["stats"]["graphs"]["captures"]


def test_without_prompts_it_is_as_large_as_any_number_needs(plan):
    assert json.loads(plan("--json")[1])["engine"]["max_running_requests"] == 32


def test_a_prompts_file_that_is_not_there_is_told_as_generate_tells_it(plan):
    code, out, err = plan("--prompts-file", "nowhere")
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot read the prompts file nowhere: ")


def test_it_takes_every_option_of_generate(plan):
    from warcore.cli.generate import generate

    def options(of):
        return {name for parameter in of.params for name in parameter.opts}

    assert options(command) - options(generate) == {"--votes"}
    assert options(generate) <= options(command)


def test_the_help_leaves_out_what_changes_nothing_in_a_plan(capsys):
    assert main(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--graph-runner" in text
    assert "--prefill-chunk" in text
    assert "--temperature" not in text
    assert "--stats" not in text
    assert "Exit code: 0" in " ".join(text.split())


# ---- what cannot be planned ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--backend", "toy-row"], "error: no backend is called 'toy-row'"),
        (["--kv-pages", "100000000000"], "error: toy needs "),
        (["--context-length", "9999"], "error: --context-length 9999: toy was made for 64 tokens"),
        (["--loop", "normal", "--fence", "coarse"], "error: --loop normal --fence coarse"),
        (["--vote"], "error: there is no option --vote"),
        (["--graph-buckets", ""], "error: --graph-buckets '': give sizes from 1 in rising order"),
    ],
)
def test_an_engine_that_could_not_start_has_no_plan_but_a_next_step(plan, args, what):
    code, out, err = plan(*args)
    assert (code, out) == (2, "")
    assert err.startswith(what), err
    assert "\nNext: " in err
    assert "Traceback" not in err


def test_a_bad_vote_is_told_before_anything_runs(plan, toys, monkeypatch):
    monkeypatch.setattr(toys.RowMajor, "shared_read_ends", lambda self, forward_mode: None)
    code, _, err = plan()
    assert code == 2
    assert err.startswith("error: backend:toy-rows: shared_read_ends(EXTEND) returned None")


def test_without_torch_it_says_what_to_install(site):
    result = site.warcore("plan", "--model", "toy")
    assert result.returncode == 2
    assert result.stderr == (
        "error: planning a model needs torch, which is not installed\n"
        "Next: pip install 'warcore[torch]'\n"
    )


def test_no_weights_are_read(plan, toys, monkeypatch):
    def load(ref, ctx):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(toys.Toy, "load", load)
    assert plan()[0] == 0
