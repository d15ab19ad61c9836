"""Public reports that ``diagnose`` answers, by id: inputs and expectations are read from the case file."""


def test_c52_a_receive_is_80_percent_waiting_and_at_most_20_percent_transfer(cases, cli, tmp_path, near):
    """The case's send and receive, in the one step of two ranks that they come from: F and B around them."""
    given, want = cases["C52"]["inputs"]["events"], cases["C52"]["expect"]
    send, receive = given
    rows = [(each["rank"], each["op"], each["mb"], each["start"], each["end"]) for each in given]
    rows += [
        (send["rank"], "F", 0, 0, send["start"]),
        (receive["rank"], "F", 0, receive["end"], 55),
        (receive["rank"], "B", 0, 55, 105),
        (send["rank"], "B", 0, 110, 160),
    ]
    table = tmp_path / "ops.csv"
    table.write_text("rank,op,microbatch,start_ms,end_ms\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    found = cli("diagnose", table, "--json").json
    (link,) = found["transfers"]
    assert (link["sender"], link["receiver"]) == (send["rank"], receive["rank"])
    assert link["waiting_ms"] == near(want["rank1_wait"])
    assert link["transfer_ms"] == near(want["rank1_transfer_max"])
    assert found["receive_waiting_share"] == near(want["wait_share"])
    said = "Receives were 80 % waiting for the sender's compute, at most 20 % transfer (measured)."
    assert said in found["verdict"]
