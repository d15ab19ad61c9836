"""Two schedules side by side: windows of each hop, where the ranking turns, and what differs, by hand and by table."""

import json

import pytest

import debubble

SIZES = {"ranks": 8, "microbatches": 24, "forward": "10ms", "input": "10ms", "weight": "10ms"}


@pytest.mark.parametrize(
    ("engine", "windows"),
    [
        # 1F1B with a hop on one link only: facts, read from Megatron-Core's and DeepSpeed's loops.
        ("ideal", [930, 1110, 1290, 1470]),
        ("megatron", [930, 1120, 1370, 1680]),
        ("deepspeed", [930, 1290, 1710, 2190]),
    ],
)
def test_a_sweep_holds_the_windows_that_were_read_from_the_engines(engine, windows):
    held = debubble.show("1f1b", **SIZES, engine=engine, against="gpipe", sweep="0-1=0:30ms:10ms")
    assert [point.makespan_ms for point in held.sweep] == windows
    assert [point.transfer_ms for point in held.sweep] == [0, 10, 20, 30]
    assert held.link == "0-1"


def test_the_ranking_turns_where_both_are_simulated_to_take_the_same_time():
    """One slow link turns interleaving from best to slower: Megatron's fused batches, both orders by Megatron."""
    given = {**SIZES, "chunks": 2, "engine": "megatron"}
    held = debubble.show("interleaved", **given, against="1f1b", sweep="0-1=0:30ms:10ms")
    assert [point.makespan_ms for point in held.sweep] == [825, 1425, 2115, 2805]
    assert [point.against_ms for point in held.sweep] == [930, 1120, 1370, 1680]
    assert 0 < held.crossover_ms < 10
    for beside, faster in ((-0.01, "interleaved"), (0.01, "1f1b")):
        hop = f"0-1={held.crossover_ms + beside}ms"
        one = debubble.show("interleaved", **given, transfer=hop).makespan_ms
        other = debubble.show("1f1b", **{**given, "chunks": None}, transfer=hop).makespan_ms
        assert ("interleaved" if one < other else "1f1b") == faster


def test_a_ranking_that_does_not_turn_has_no_crossover():
    held = debubble.show("gpipe", ranks=2, microbatches=4, against="1f1b", sweep="0-1=0:4ms:1ms")
    assert held.crossover_ms is None
    assert "turns  never, within the sweep" in str(held)


def test_without_a_sweep_two_schedules_stand_on_one_axis_with_what_differs():
    held = debubble.show("1f1b", ranks=4, microbatches=8, against="gpipe")
    assert (held.makespan_ms, held.against_ms, held.speedup, held.sweep) == (33, 33, 1, ())
    assert held.differences[0] == "1f1b and gpipe take the same time."
    assert "Most activations on a rank: 1f1b 4, gpipe 8 micro-batches." in held.differences
    held = debubble.show("1f1b", ranks=4, microbatches=8, against="zb-h1")
    rows = [line for line in held.text(80).splitlines() if line.startswith(" rank 0")]
    drawn = [max(line.rfind(glyph) for glyph in "█▓░▒") for line in rows]
    assert len(rows) == 2
    assert drawn[1] < drawn[0]


def test_a_schedule_file_is_held_against_a_name(tmp_path):
    debubble.show("zb-h1", ranks=4, microbatches=8).write("torch-csv", tmp_path / "mine.csv")
    held = debubble.show("1f1b", ranks=4, microbatches=8, against=tmp_path / "mine.csv")
    assert held.against_ms == debubble.show("zb-h1", ranks=4, microbatches=8).makespan_ms


def test_the_command_line_gives_the_sweep_as_json_and_two_pictures_in_one_figure(cli, tmp_path):
    words = ["show", "1f1b", "-p", 4, "-m", 8, "--against", "zb-h1", "--sweep", "2-3=0:5ms:1ms", "--engine", "torch"]
    said = cli(*words, "--svg", tmp_path / "two.svg", "--json")
    assert set(said.json["sweep"][0]) == {"transfer_ms", "makespan_ms", "against_ms"}
    assert len(said.json["sweep"]) == 6
    assert "crossover_ms" in said.json
    assert json.dumps(said.json["sweep"]) == json.dumps(
        debubble.show(
            "1f1b", ranks=4, microbatches=8, engine="torch", against="zb-h1", sweep="2-3=0:5ms:1ms"
        ).document()["sweep"]
    )
    assert (tmp_path / "two.svg").read_text().count('class="t"') == 2


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"sweep": "6-7=0:60ms:5ms"}, "a sweep is of two schedules"),
        ({"against": "zb-h1", "sweep": "6-7=0:60ms"}, "it names a link, and the first hop, the last and the step"),
        ({"against": "zb-h1", "sweep": "2-3=5ms:1ms:1ms"}, "hops rise from the first to the last"),
        ({"against": "zb-h1", "sweep": "2-3=0:1s:1us"}, "in at most 1000 steps"),
        ({"against": "zb-h1", "sweep": "0-3=0:1ms:1ms"}, "1f1b hands nothing from rank 0 to rank 3"),
        ({"against": "zb-h1", "sweep": "2-3=0:1ms:1ms", "transfer": "0,1ms,0"}, "named by its ranks"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_with_its_rule(given, rule):
    with pytest.raises(debubble.InputError, match=rule):
        debubble.show("1f1b", ranks=4, microbatches=8, **given)


def test_each_schedule_under_its_own_engine_turns_the_ranking_at_one_slow_link():
    """Megatron's 1F1B against zero-bubble's runtime: measured, ZB is faster without a delay and slower at 30 ms."""
    given = {"ranks": 8, "microbatches": 24, "forward": "10ms", "input": "10ms", "weight": "10ms"}
    held = debubble.show("1f1b", **given, engine="megatron,zero-bubble", against="zb-h2", sweep="6-7=0:60ms:5ms")
    assert held.engine == "megatron,zero-bubble"
    assert (held.makespan_ms, held.against_ms) == (930, 790)
    assert held.sweep[-1].against_ms > held.sweep[-1].makespan_ms
    assert 0 < held.crossover_ms < 60
    assert held.differences[0] == "zb-h2 under zero-bubble is 17.7 % faster than 1f1b under megatron."
    with pytest.raises(debubble.InputError, match="one engine, or one for each of two schedules"):
        debubble.show("1f1b", ranks=2, microbatches=2, engine="megatron,torch")
