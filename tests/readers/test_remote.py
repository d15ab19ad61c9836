"""Addresses: a run in fsspec's memory is read as from a folder, whatever its format; what cannot be opened is said."""

import shutil
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec")

from debubble.core.costs import Rates, costs_of  # noqa: E402
from debubble.core.schedule import Shape  # noqa: E402
from debubble.readers.files import Remote, local, place  # noqa: E402
from debubble.readers.source import read  # noqa: E402
from debubble.schedules.catalog import build  # noqa: E402
from pour import Style, pour, run_of, write  # noqa: E402

RECORDING = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings" / "four"


@pytest.fixture
def upload():
    """Put the files of a folder into memory; the address of that folder."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()

    def put(folder: Path, name: str = "run") -> str:
        for file in folder.rglob("*"):
            if file.is_file():
                memory.pipe_file(f"/{name}/{file.relative_to(folder)}", file.read_bytes())
        return f"memory://{name}"

    yield put
    memory.store.clear()


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    schedule = build("1f1b", Shape(3, 4))
    write(folder, pour(run_of(schedule, costs_of(Rates(), schedule), 2), Style(kernels=2)))
    return folder


def starts(observation):
    return [window.timeline.start.tolist() for window in observation.windows]


def test_a_folder_of_traces_in_memory_is_read_as_on_disk(cli, traces, upload):
    address = upload(traces)
    assert starts(read([address])) == starts(read([traces]))
    said, told = (cli("diagnose", path, "--json").json for path in (address, traces))
    assert said.pop("source") == address
    told.pop("source")
    assert said == told


def test_a_recording_a_table_and_an_export_in_memory_too(shared, cli, upload, tmp_path):
    assert starts(read([upload(RECORDING, "four")])) == starts(read([RECORDING]))
    run = shared / "traces" / "bytedance-st"
    for name in ("trace.parquet", "st-nsys.sqlite"):
        shutil.copy(run / name, tmp_path / name)
    address = upload(tmp_path, "st")
    for name in ("trace.parquet", "st-nsys.sqlite"):
        found = cli("diagnose", f"{address}/{name}", "--json").json
        assert found["idle_share"] == cli("diagnose", run / name, "--json").json["idle_share"]


def test_why_and_fit_take_addresses_as_well(cli, traces, upload, tmp_path):
    address = upload(traces)
    assert cli("why", traces, address, "--json").json["throughput_ratio"] == pytest.approx(1)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "steps.csv").write_text("m,s\n8,1.1\n16,1.9\n32,3.5\n")
    assert cli("fit", f"{upload(tmp_path / 'log', 'log')}/steps.csv", "-p", 4, "--json").json["slot_ms"] > 0


def test_what_is_not_there_or_not_known_is_one_line(cli, upload):
    for address, said in (("memory://nowhere", "nowhere"), ("hdfsx://a/b", "not known to fsspec")):
        ran = cli("diagnose", address)
        assert (ran.status, len(ran.err.splitlines())) == (2, 1)
        assert said in ran.err


def test_a_remote_place_has_the_methods_of_a_path(upload, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.json.gz").write_bytes(b"12345")
    (tmp_path / "b.txt").write_bytes(b"1")
    folder = place(upload(tmp_path))
    assert folder.is_dir()
    assert [file.name for file in sorted(folder.rglob("*"))] == ["b.txt", "a.json.gz"]
    assert [file.name for file in folder.glob("*.txt")] == ["b.txt"]
    file = Remote("memory://run/deep/a.json.gz")
    assert (file.suffix, file.stat().st_size, str(file.parent)) == (".gz", 5, "memory://run/deep")
    assert file.is_file()
    with local(file) as copy:
        assert copy.read_bytes() == b"12345"
    assert not copy.exists()


def test_a_path_of_this_machine_stays_one(tmp_path):
    assert place(str(tmp_path)) == tmp_path
    assert place(tmp_path) is not None
    with local(tmp_path) as here:
        assert here is tmp_path
