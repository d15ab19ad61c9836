"""Case C50: transfers that nothing hides, as ``show`` tells them from the bubble."""

import json

import pytest

from debubble.cli.main import main

RING = ["forward-only", "-p", "4", "-m", "4", "-v", "2", "--forward", "2"]  # 1 ms a chunk


def shown(capsys, *args: str) -> dict:
    assert main(["show", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_c50_the_bubble_of_4_stages_repeated_twice_with_4_micro_batches_is_0_2727(capsys):
    assert shown(capsys, *RING)["idle_share"] == pytest.approx(0.2727, abs=1e-4)


def test_c50_transfers_as_long_as_the_compute_take_half_of_a_ranks_busy_time(capsys):
    """Of the ranks that send all they make; the last one keeps its last outputs, which MaxText sends on as well."""
    ranks = shown(capsys, *RING, "--transfer", "1", "--sends", "blocking")["per_rank"]
    shares = [rank["transfer_ms"] / (rank["compute_ms"] + rank["transfer_ms"]) for rank in ranks]
    assert shares[:3] == [0.5, 0.5, 0.5]
    assert shares[3] < 0.5


def test_c50_every_slot_doubles_but_the_last_whose_output_stays(capsys):
    assert shown(capsys, *RING, "--transfer", "1", "--sends", "blocking")["makespan_ms"] == 2 * 11 - 1


def test_c50_the_same_transfers_sent_asynchronously_are_partly_hidden(capsys):
    blocking, hidden = (
        shown(capsys, *RING, "--transfer", "1", "--sends", sends)["makespan_ms"] for sends in ("blocking", "async")
    )
    assert hidden < blocking


@pytest.mark.parametrize("sends", ["async", "blocking", "rendezvous"])
def test_the_parts_of_each_rank_sum_to_the_makespan_however_it_sends(sends, capsys):
    said = shown(capsys, "1f1b", "-p", "4", "-m", "8", "--link", "10", "--bytes", "2MB", "--sends", sends)
    for rank in said["per_rank"]:
        parts = (value for key, value in rank.items() if key.endswith("_ms"))
        assert sum(parts) == pytest.approx(said["makespan_ms"])


def test_asynchronous_sends_over_a_link_take_turns(capsys):
    """0.2 ms a hop would hide behind 1 ms of forward; 2 ms on a link of a tenth of the speed cannot."""
    fast, slow = (
        shown(capsys, "gpipe", "-p", "2", "-m", "16", "--bytes", "2MB", "--link", speed) for speed in ("10", "1GB/s")
    )
    assert (fast["sends"], slow["sends"]) == ("link", "link")
    assert fast["makespan_ms"] == pytest.approx(51 + 2 * 0.2)
    assert slow["makespan_ms"] == pytest.approx(1 + 16 * 2 + 1 + 16 * 2 + 2 + 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--link", "10"], "--link without --bytes"),
        (["--bytes", "1MB"], "--bytes without --link"),
        (["--link", "0", "--bytes", "1MB"], "--link = 0: a link carries more than 0 GB/s"),
        (["--link", "fast", "--bytes", "1MB"], "--link = fast"),
    ],
)
def test_half_of_a_link_or_none_is_refused(options, words, capsys):
    assert main(["show", "1f1b", "-p", "2", "-m", "2", *options]) == 2
    assert words in capsys.readouterr().err


def test_show_keeps_the_order_of_sends_that_a_file_states(tmp_path, capsys):
    """Case C48 A once more: it runs where sends are buffered and stands still where they wait."""
    path = tmp_path / "a.csv"
    path.write_text(
        "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1\n1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n"
    )
    assert shown(capsys, str(path), "--transfer", "1", "--sends", "blocking")["sends"] == "blocking"
    assert main(["show", str(path), "--sends", "rendezvous"]) == 1
    assert "S 0F1 (rank 0) waits for S 1F0 (rank 1) waits for S 0F1" in capsys.readouterr().err
