"""Hops by link and engines in ``show``: one grammar, every engine named where hops are long, refusals with a rule."""

import pytest

import debubble
from debubble.frameworks.engines import ENGINES

SIZES = {"ranks": 8, "microbatches": 24, "forward": "10ms", "backward": "20ms"}


def step(**given) -> float:
    return debubble.show("1f1b", **{**SIZES, **given}).makespan_ms


def test_one_grammar_of_hops_by_link_by_boundary_and_for_all():
    slow = step(transfer="0-1=10ms")
    assert slow == 1110
    assert slow == step(transfer="0ms,0-1=10ms") == step(transfer="1-0=10ms") == step(transfer="10ms,0,0,0,0,0,0")
    assert step(transfer="10ms") == step(transfer=",".join(["10ms"] * 7)) == step(transfer=10) == 1470


def test_long_hops_without_an_engine_are_told_under_each():
    shown = debubble.show("1f1b", **SIZES, transfer="2ms")
    assert set(shown.per_engine_ms) == set(ENGINES)
    told = {name: shown.per_engine_ms[name] for name in ("ideal", "megatron", "deepspeed")}
    assert told == {"ideal": 1038, "megatron": 1048, "deepspeed": 1138}
    assert shown.per_engine_ms["megatron-overlap"] is None  # Megatron refuses it for 1F1B
    assert shown.document()["per_engine_ms"]["megatron"] == 1048
    assert "megatron, torch-1f1b" in str(shown)
    assert "--engine E" in str(shown)


@pytest.mark.parametrize("given", [{"transfer": "0.2ms"}, {"transfer": "2ms", "engine": "megatron"}, {}])
def test_short_hops_and_a_known_engine_ask_nothing(given):
    assert "per_engine_ms" not in debubble.show("1f1b", **SIZES, **given).document()


def test_from_a_fiftieth_of_a_forward_on_hops_are_long():
    assert debubble.show("1f1b", **SIZES, transfer="0.21ms").per_engine_ms
    assert debubble.show("1f1b", **SIZES, transfer="6-7=0.21ms").per_engine_ms
    assert debubble.show("1f1b", **SIZES, occupy="6-7=0.21ms").per_engine_ms


def test_the_engine_is_printed_and_a_hop_that_takes_up_its_sender():
    shown = debubble.show("1f1b", ranks=2, microbatches=1, engine="megatron", occupy="0-1=4ms", transfer="1ms")
    assert shown.engine == "megatron"
    assert "engine megatron" in shown.title
    assert "senders taken up 0-1 4 ms" in shown.title
    assert shown.makespan_ms == 2 * (1 + 2) + 2 * (4 + 1)  # F and B of both ranks, a hop there and one back


def test_an_engine_leaves_no_exact_idle_share_where_the_formula_knows_no_hop():
    assert debubble.show("1f1b", ranks=4, microbatches=8, engine="megatron").evidence == "exact"
    hops = debubble.show("1f1b", ranks=4, microbatches=8, engine="megatron", transfer="1us")
    assert hops.evidence == "simulated"
    assert hops.idle_formula is None
    one_lane = debubble.show("interleaved", ranks=8, microbatches=24, chunks=2, engine="torch:one-lane")
    assert one_lane.evidence == "simulated"  # 825 -> 1,080: what its formula says is not what this engine does


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"engine": "megtron"}, "did you mean megatron"),
        ({"engine": "megatron-overlap"}, "2 chunks a rank or more, and 1f1b has 1"),
        ({"engine": "megatron", "sends": "blocking"}, "has its own way of sending"),
        ({"engine": "torch", "link": 25, "bytes": "64MB"}, "has its own way of sending"),
        ({"transfer": "0-1=1ms,1-0=2ms"}, "each link is named once"),
        ({"transfer": "1ms,2ms"}, "1f1b with 8 stages has 7 boundaries"),
        ({"transfer": "0-5=1ms"}, "links of it: 0-1"),
        ({"transfer": "3-3=1ms"}, "a link joins two ranks"),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(given, rule):
    with pytest.raises(debubble.InputError, match=rule):
        debubble.show("1f1b", **SIZES, **given)


def test_the_command_that_shows_it_again_holds_links_and_engine():
    page = debubble.show("1f1b", **SIZES, engine="megatron", transfer="1ms,6-7=30ms", occupy="0-1=2ms").html()
    assert "--transfer 1ms,6-7=30ms --occupy 0ms,0-1=2ms" in page
    assert "--engine megatron" in page


def job(path, **keys):
    said = {"gpus": 4, "pipeline": 4, "microbatches": 8, "schedule": "1f1b", "forward": "10ms", "backward": "20ms"}
    lines = (f"{key} = {value!r}" for key, value in {**said, "name": path.stem, **keys}.items())
    path.write_text("\n".join(lines))
    return path


def test_why_says_what_hops_cost_apart_from_what_the_engine_makes_of_them(tmp_path):
    """DeepSpeed hands over 8 activations and 8 gradients on link 2-3 one by one: 240 ms, half of it as a latency."""
    a, b = job(tmp_path / "a.toml"), job(tmp_path / "b.toml", transfer="2-3=15ms", engine="deepspeed")
    found = debubble.why(a, b)
    parts = {each.cause: each.b_ms for each in found.causes}
    assert (parts["transfer"], parts["engine"], parts["unexplained"]) == (120, 120, 0)
    assert sum(parts.values()) == 570
    assert {each.cause: each.a_ms for each in found.causes}["engine"] == 0


def test_with_hops_the_idle_share_of_a_job_is_simulated_and_that_of_its_window(tmp_path):
    a, b = job(tmp_path / "a.toml"), job(tmp_path / "b.toml", transfer="15ms")
    found = debubble.why(a, b)
    assert (found.a.idle_share, found.a.evidence) == (pytest.approx(3 / 11), "exact")
    assert found.b.evidence == "simulated"
    assert found.b.idle_share == pytest.approx(1 - 240 / found.b.makespan_ms)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"engine": "megatrn"}, "did you mean megatron"),
        ({"transfer": "0-3=1ms"}, "hands nothing from rank 0 to rank 3"),
    ],
)
def test_a_job_of_no_such_engine_or_link_is_refused(tmp_path, keys, rule):
    with pytest.raises(debubble.InputError, match=rule):
        debubble.why(job(tmp_path / "a.toml"), job(tmp_path / "b.toml", **keys))


def test_a_cause_of_its_own_is_what_an_engine_makes_of_a_slow_link():
    given = {"ranks": 8, "microbatches": 24, "chunks": 2, "forward": "10ms", "backward": "20ms"}
    shown = debubble.show("interleaved", **given, transfer="0-1=10ms", engine="megatron")
    cost = {each.cause: each.cost_ms for each in shown.causes}
    assert shown.makespan_ms == 1425
    assert cost["transfer"] == 885 - 825  # as a latency
    assert cost["engine"] == 1425 - 885
    assert "engine" not in {each.cause for each in debubble.show("1f1b", ranks=4, microbatches=8).causes}
