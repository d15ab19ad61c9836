"""``show``: keys that scripts rely on, files, looks, and every bad input as one clear line."""

import json
import os
import re
import subprocess
import sys

import pytest

from debubble.core.schedule import Shape
from debubble.readers import torch_csv
from debubble.schedules.catalog import CATALOG, build

KEYS = {
    "schedule", "ranks", "stages", "microbatches", "makespan_ms", "lower_bound_ms", "idle_share", "bubble_ratio",
    "span_idle_share", "evidence", "per_rank",
}  # fmt: skip
PARTS = ("compute_ms", "warm_up_ms", "waiting_ms", "transfer_ms", "cool_down_ms")
SIZE = ("-p", 4, "-m", 8)


def faults(ran) -> list[str]:
    """The lines of a refused command: nothing on stdout, no traceback."""
    assert (ran.status, ran.out) == (2, "")
    assert "Traceback" not in ran.err
    return [line.removeprefix("debubble: ") for line in ran.err.splitlines()]


def test_json_has_the_keys_and_each_rank_adds_up_to_the_makespan(cli):
    shown = cli("show", "interleaved", *SIZE, "-v", 2, "--transfer", "35us", "--rank-scale", "1,1,1.3,1", "--json").json
    assert set(shown) >= KEYS
    assert (shown["ranks"], shown["stages"], shown["microbatches"]) == (4, 8, 8)
    for rank, row in enumerate(shown["per_rank"]):
        assert row["rank"] == rank
        assert set(row) >= {*PARTS, "peak_activations"}
        assert sum(row[part] for part in PARTS) == pytest.approx(shown["makespan_ms"], abs=1e-9)


def test_rank_0_of_1f1b_p4_m8_as_the_design_says(cli):
    row = cli("show", "1f1b", *SIZE, "--json").json["per_rank"][0]
    assert [row[part] for part in PARTS[1:]] == [0, 9, 0, 0]


@pytest.mark.parametrize(
    ("args", "evidence"),
    [
        (("1f1b",), "exact"),
        (("gpipe", "--forward-only"), "exact"),
        (("interleaved", "-v", 2), "exact"),
        (("zb-h1", "--input", 1, "--weight", 1), "exact"),
        (("1f1b", "--transfer", "1us"), "simulated"),
        (("1f1b", "--stage-scale", "1,1,1,1.6"), "simulated"),
        (("zb-h1", "--input", 1, "--weight", 3), "simulated"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_a_figure_is_exact_only_where_theory_gives_the_same(cli, args, evidence):
    assert cli("show", *args, *SIZE, "--json").json["evidence"] == evidence


def test_durations_and_defaults(cli):
    shown = cli("show", "1f1b", *SIZE, "--json", "--forward", "500us").json
    assert shown["makespan_ms"] == 11 * 2.5  # B is 2 ms unless it is given
    assert cli("show", "1f1b", *SIZE, "--json", "--forward", 1, "--backward", "1ms").json["makespan_ms"] == 22


def test_release_moves_the_peak_of_a_split_backward(cli):
    def peak(rule: str) -> float:
        shown = cli("show", "zb-h2", *SIZE, "--release", rule, "--json").json
        return max(row["peak_activations"] for row in shown["per_rank"])

    assert peak("i") <= peak("half") <= peak("w")


def test_files_are_written_and_said(cli, tmp_path):
    csv, trace = tmp_path / "order.csv", tmp_path / "trace.json.gz"
    ran = cli("show", "1f1b", *SIZE, "--torch-csv", csv, "--perfetto", trace)
    assert ran.status == 0
    assert ran.err.splitlines() == [f"wrote {trace}", f"wrote {csv}"]
    assert torch_csv.read(csv).same_order(build("1f1b", Shape(4, 8)))
    assert trace.read_bytes()[:2] == b"\x1f\x8b"


def test_nothing_is_written_unless_asked(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli("show", "1f1b", *SIZE)
    assert os.listdir(tmp_path) == []


def test_a_schedule_file_is_shown_like_the_schedule_it_holds(cli, tmp_path):
    torch_csv.write(build("zb-v", Shape(4, 8)), tmp_path / "mine.csv")
    mine = cli("show", tmp_path / "mine.csv", "--json").json
    theirs = cli("show", "zb-v", *SIZE, "--json").json
    differ = {key for key in KEYS if mine[key] != theirs[key]}
    assert differ == {"schedule", "evidence"}


def test_a_file_that_deadlocks_is_a_refusal_with_the_circle(cli, tmp_path):
    (tmp_path / "stuck.csv").write_text("0F0,0B1,0F1,0B0\n1F0,1F1,1B0,1B1\n")
    ran = cli("show", tmp_path / "stuck.csv")
    assert (ran.status, ran.out) == (1, "")
    assert "0B1" in ran.err


def test_the_list_names_every_schedule(cli):
    lines = cli("show", "--list").out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(CATALOG)
    assert {entry.needs for entry in CATALOG.values()} - {""} <= set(re.split(r"\s{2,}", "  ".join(lines)))


@pytest.mark.parametrize("order", [("--list", "--json"), ("--json", "--list")])
def test_the_list_is_one_json_object_too(cli, order):
    entries = cli("show", *order).json["schedules"]
    assert [entry["name"] for entry in entries] == list(CATALOG)
    assert {"placement", "needs", "bubble", "activations", "paper"} < set(entries[0])


@pytest.mark.parametrize(
    ("theirs", "ours", "chunks"),
    [
        ("1F1B", "1f1b", 1),
        ("Interleaved1F1B", "interleaved", 2),
        ("ScheduleLoopedBFS", "looped-bfs", 2),
        ("ZBH1", "zb-h1", 1),
    ],
)
def test_torchs_and_the_papers_names_work_and_chunks_may_be_left_out(cli, theirs, ours, chunks):
    found = cli("show", theirs, *SIZE, "--json").json
    assert (found["schedule"], found["stages"]) == (ours, 4 * chunks)


def test_interleaving_one_chunk_is_refused_not_read_as_two(cli):
    ran = cli("show", "interleaved", *SIZE, "-v", 1)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "chunks = 1: interleaved has several on each rank; give 2 or none" in ran.err


def test_fewer_micro_batches_than_ranks_is_a_warning_on_stderr(cli):
    ran = cli("show", "1f1b", "-p", 4, "-m", 3)
    assert ran.status == 0
    assert (
        ran.err
        == "warning: m < p: 3 micro-batches cannot keep 4 ranks busy at the same time; -m 4 is the least that can\n"
    )
    assert cli("show", "1f1b", "-p", 4, "-m", 4).err == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("1f2b", *SIZE), "schedule = '1f2b': no schedule has this name; did you mean 1f1b"),
        (("1F1C", *SIZE), "did you mean 1f1b"),
        (("1f1b", "-p", 4, "-m", 0), "--microbatches = 0: a count is a whole number, not below 1"),
        (("1f1b", "-p", -4, "-m", 8), "--ranks = -4: a count"),
        (("1f1b", "-p", "x", "-m", 8), "--ranks = x: a count"),
        (("1f1b", *SIZE, "--forward", "nan"), "--forward = nan: a duration is a number, not below 0"),
        (("1f1b", *SIZE, "--forward", "inf"), "--forward = inf: a duration"),
        (("1f1b", *SIZE, "--forward", "-1ms"), "--forward = -1ms: a duration"),
        (("1f1b", *SIZE, "--forward", "5 parsecs"), "write it as in 20ms"),
        (("1f1b", *SIZE, "--forward", "1e400"), "--forward = 1e400: a duration"),
        (("1f1b", *SIZE, "--forward", "1e30"), "a duration or factor is a finite number"),
        (("1f1b", *SIZE, "--stage-scale", "1,nan,1,1"), "--stage-scale = 1,nan,1,1: factors are finite numbers"),
        (("1f1b", *SIZE, "--stage-scale", "1,1"), "stage-scale has 2 factors: it needs one for each of the 4 stages"),
        (("1f1b", *SIZE, "--backward", 1, "--input", 2), "the two halves of a backward add up to it"),
        (("1f1b", "-p", 4, "-m", 10**12), "= 4 x 1000000000000: 8,000,000,000,000 ops would need 416,000 GB"),
        (("1f1b", "-p", 4, "-m", 10**11), "800,000,000,000 ops would need 41,600 GB of memory"),
        (("interleaved", "-p", 4, "-m", 9, "-v", 2), "nearest: 8 or 12"),
        (("1f1b", "-p", 4), "--microbatches: a schedule of the catalog needs to know; give -m 8"),
        ((*SIZE,), "SCHEDULE"),
        (("missing.csv",), "missing.csv: it cannot be read: No such file or directory"),
        (("1f1b", *SIZE, "--release", "x"), "--release"),
        (("1f1b", *SIZE, "--torch-csv", "no/where.csv"), "no/where.csv: it cannot be written"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_one_line_with_value_rule_and_remedy(cli, args, says):
    (line,) = faults(cli("show", *args))
    assert says in line


def test_all_bad_options_are_told_at_once(cli):
    args = ("-p", 0, "-m", "x", "--forward", "nan", "--transfer", "-1", "--stage-scale", "1,a", "--release", "z")
    assert len(faults(cli("show", "1f1b", *args))) == 6


def test_all_that_is_missing_is_told_at_once(cli):
    assert len(faults(cli("show", "1f2b"))) == 3  # the name, ranks, micro-batches


def test_all_lists_of_factors_that_do_not_fit_are_told_at_once(cli):
    scales = ("--stage-scale", "1,1", "--rank-scale", "1", "--microbatch-scale", "1,2,3")
    assert len(faults(cli("show", "1f1b", *SIZE, *scales))) == 3


def test_sizes_that_a_file_contradicts_are_refused(cli, tmp_path):
    torch_csv.write(build("1f1b", Shape(2, 3)), tmp_path / "mine.csv")
    assert len(faults(cli("show", tmp_path / "mine.csv", "-p", 4, "-m", 8, "-v", 2, "--group", 2))) == 4
    assert cli("show", tmp_path / "mine.csv", "-p", 2, "-m", 3).status == 0


def piped(*args: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "debubble.cli.main", "show", "1f1b", "-p", "2", "-m", "2", *args]
    return subprocess.run(command, capture_output=True, env=os.environ | environment, check=True)


def test_a_stdout_that_is_not_utf8_gets_an_ascii_picture():
    out = piped(PYTHONIOENCODING="ascii").stdout.decode("ascii")
    assert "0FFFFFF1FFFFFF............" in out
    assert "?" not in out


def test_piped_output_is_80_columns_without_colour():
    out = piped(PYTHONIOENCODING="utf-8", COLUMNS="").stdout.decode()
    assert "\x1b" not in out
    assert max(map(len, out.splitlines()[:4])) <= 80


def test_columns_are_obeyed(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    wide = cli("show", "gpipe", *SIZE).out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli("show", "gpipe", *SIZE).out
    assert [max(len(line) for line in out.splitlines()[1:5]) for out in (wide, narrow)] > [100, 50]
    assert max(len(line) for line in narrow.splitlines()[1:5]) <= 60


@pytest.mark.parametrize(
    ("environment", "args", "coloured"),
    [({}, (), True), ({"NO_COLOR": "1"}, (), False), ({}, ("--no-color",), False), ({"TERM": "dumb"}, (), False)],
    ids=["terminal", "NO_COLOR", "--no-color", "dumb"],
)
def test_colour_only_on_a_terminal_that_wants_it(monkeypatch, environment, args, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in on_a_terminal("show", "1f1b", "-p", "2", "-m", "2", *args)) == coloured


def on_a_terminal(*args: str) -> str:
    """What a command writes to a pseudo-terminal."""
    pty = pytest.importorskip("pty")
    read, write = pty.openpty()
    subprocess.run([sys.executable, "-m", "debubble.cli.main", *args], stdout=write, check=True)
    os.close(write)
    text = b""
    try:
        while chunk := os.read(read, 65536):
            text += chunk
    except OSError:
        pass  # the other side is closed
    os.close(read)
    return text.decode()


def test_an_infinite_ratio_is_null_in_json(cli):
    ran = cli("show", "1f1b", "-p", 2, "-m", 2, "--forward", 0, "--backward", 0, "--json")
    assert json.loads(ran.out)["bubble_ratio"] is None


@pytest.mark.parametrize(
    ("release", "said"),
    [("w", "4 4 4 4, freed at W"), ("half", "4 3.5 3 2.5, freed half at I"), ("i", "4 3 2 1, freed at I")],
)
def test_the_rule_by_which_activations_are_freed_is_named(cli, release, said):
    assert said in cli("show", "zb-h1", *SIZE, "--release", release).out
    assert cli("show", "zb-h1", *SIZE, "--release", release, "--json").json["release"] == release


@pytest.mark.parametrize("transfer", ["0", "1ms"])
def test_without_any_work_all_is_idle_and_there_is_no_ratio_to_work(cli, transfer):
    args = ("show", "1f1b", "-p", 4, "-m", 8, "--stage-scale", "0,0,0,0", "--transfer", transfer)
    shown = cli(*args, "--json").json
    assert [shown[key] for key in ("idle_share", "span_idle_share", "bubble_ratio")] == [1, 1, None]
    text = cli(*args).out
    assert "idle share    100.0 %" in text
    assert "bubble ratio     no work" in text


def test_the_list_fits_a_terminal_of_80_columns_and_has_a_line_for_each_schedule_where_it_is_piped(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    seen = on_a_terminal("show", "--list")
    assert max(map(len, seen.splitlines())) <= 80
    piped_lines = cli("show", "--list").out.splitlines()
    assert len(piped_lines) == 2 + len(CATALOG)
    for entry in CATALOG.values():
        told = [entry.name, entry.placement, entry.needs, entry.bubble, entry.bubble_holds, entry.activations]
        assert all(word in seen and any(word in line for line in piped_lines) for word in (*told, entry.paper))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-v", "interleaved -v 4", "zb-auto", "dualpipe -m 32"])
def test_hints_stay_within_80_columns(cli, name):
    hints = cli("show", "-p", 16, "-m", 16, "--ascii", *name.split()).out.splitlines()[-2:]
    assert max(map(len, hints)) < 80


@pytest.mark.parametrize("name", [name for name, entry in CATALOG.items() if name != "forward-only"])
def test_nothing_is_wider_than_the_terminal(cli, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    out = cli("show", name, "-p", "4", "-m", "8", "--rank-scale", "1,1,1,1.25", "--transfer", "100us").out
    assert max(map(len, out.splitlines())) <= 80


def test_only_options_that_were_not_given_are_offered(cli):
    plain, given = (cli("show", "1f1b", "-p", "4", "-m", "8", *more).out for more in ((), ("--transfer", "100us")))
    assert "--transfer 100us" in plain.splitlines()[-1]
    assert "--transfer" not in given.splitlines()[-1]


def test_a_pair_may_differ_from_stage_to_stage_and_interleaved_runs_in_pairs_if_one_is_given(cli):
    plain, paired = (
        cli("show", "interleaved", *SIZE, "-v", 2, *more, "--json").json for more in ((), ("--pair", "3ms"))
    )
    # Pairs that save nothing cost nothing but one chunk more in flight.
    assert paired["makespan_ms"] == plain["makespan_ms"] == 28.5
    assert paired["per_rank"][0]["peak_activations"] == plain["per_rank"][0]["peak_activations"] + 0.5
    slow = cli("show", "dualpipe", *SIZE, "--pair", "2ms,0=3ms,3=3ms", "--json").json
    even = cli("show", "dualpipe", *SIZE, "--pair", "2.5ms", "--json").json
    # A pair joins stages s and 3-s: one of 0 and 3 takes 3 ms, one of 1 and 2 takes 2 ms.
    busy = {row["rank"]: row["compute_ms"] for row in slow["per_rank"]}
    mean = {row["rank"]: row["compute_ms"] for row in even["per_rank"]}
    assert [busy[rank] > mean[rank] for rank in range(4)] == [True, False, False, True]


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("1f1b", "2ms", "--pair: 1f1b runs no forward and backward as one slot"),
        ("dualpipe", "2ms,9=3ms", "pair 9: stages are 0 to 3"),
        ("dualpipe", "2ms,3ms", "one value is that of all stages that are not named"),
        ("dualpipe", "2ms,0=3ms,0=4ms", "each once"),
        ("dualpipe", "fast", "pair = fast"),
    ],
)
def test_pairs_that_cannot_be_are_refused(cli, name, value, part):
    assert part in faults(cli("show", name, *SIZE, "--pair", value))[0]


UNEQUAL = ("--sequence", 4096, "--attention-share", "20%")


def test_samples_of_unequal_length_have_an_expected_and_a_late_idle_share_and_what_balancing_would_give(cli, tmp_path):
    (tmp_path / "lengths.csv").write_text("id,tokens\n0,4096\n1,1024\n2,512\n")
    given = ("--lengths", tmp_path / "lengths.csv", *UNEQUAL)
    found = cli("show", "1f1b", *SIZE, *given, "--json").json["unequal_samples"]
    usual, even = found["as_they_come"], found["balanced"]
    assert (found["lengths"], found["packing"], found["seed"], found["evidence"]) == (
        "lengths.csv",
        "whole",
        0,
        "simulated",
    )
    assert found["even_idle_share"] == pytest.approx(3 / 11)
    assert usual["p95_idle_share"] > usual["expected_idle_share"] > even["expected_idle_share"]
    out = cli("show", "1f1b", *SIZE, *given).out
    assert f"{100 * usual['expected_idle_share']:.1f} %" in out
    assert f"simulated: {found['draws']} steps, seed 0" in out
    # Without lengths there is no such key.
    assert "unequal_samples" not in cli("show", "1f1b", *SIZE, "--json").json


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (("--lengths", "2048"), ("--sequence: ", "--attention-share: ")),
        (("--sequence", 4096), ("--sequence: ", "--lengths")),
        (("--packing", "cut"), ("packing = cut", "--lengths")),
        (("--lengths", "no.csv", *UNEQUAL), ("lengths = no.csv", "no file has this name")),
        (("--lengths", "p50=800", *UNEQUAL), ("lengths = p50=800", "two figures")),
        (("--lengths", "p50=800,p95=100", *UNEQUAL), ("lengths = p50=800,p95=100", "no log-normal distribution")),
        # A percentile of a log-normal is at most exp(z^2 / 2) times its mean, 3.87 times for 95 %.
        (("--lengths", "mean=1000,p95=3900", *UNEQUAL), ("no log-normal distribution",)),
        (("--lengths", "p50=800,mode=9", *UNEQUAL), ("its figures are the mean and percentiles",)),
        (("--lengths", "0", *UNEQUAL), ("lengths = 0", "at least one token")),
        (("--lengths", "2048", "--sequence", 4096, "--attention-share", "120%"), ("attention-share = 120%",)),
        (("--lengths", "2048", *UNEQUAL, "--microbatch-scale", "1,1,1,1,1,1,1,2"), ("leave one out",)),
    ],
    ids=str,
)
def test_lengths_that_cannot_be_are_refused(cli, more, parts):
    said = "\n".join(faults(cli("show", "1f1b", *SIZE, *more)))
    assert all(part in said for part in parts), said


def test_a_file_of_lengths_without_a_column_of_them_is_refused(cli, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("a,b\n1,2\n")
    assert "none of its columns" in faults(cli("show", "1f1b", *SIZE, "--lengths", path, *UNEQUAL))[0]
    path.write_text("tokens\n12\nmany\n")
    assert "length 2 = many" in faults(cli("show", "1f1b", *SIZE, "--lengths", path, *UNEQUAL))[0]
