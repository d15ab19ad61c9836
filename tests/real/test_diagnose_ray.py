"""``diagnose --ray`` on a local Ray of two workers says what reading in one process says, and names what is missing."""

import sys

import pytest

from debubble.core.schedule import Shape
from debubble.readers.recording_file import track_path
from debubble.schedules.catalog import build
from recorded import files, record

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def two_workers():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def test_ranks_read_by_two_ray_workers_give_equal_output(cli, shared, two_workers):
    trace = shared / "traces" / "bytedance-st" / "st-kineto"
    alone, together = (cli("diagnose", trace, *extra, "--json").json for extra in ((), ("--ray",)))
    assert alone == together


def test_a_bad_rank_costs_one_rank_there_too(cli, shared, two_workers):
    trace = shared / "traces" / "broken" / "truncgz"
    alone, together = (cli("diagnose", trace, *extra, "--json").json for extra in ((), ("--ray",)))
    assert alone == together
    assert any("rank2_trace.json.gz" in remark for remark in together["remarks"])


def test_a_recording_read_by_two_ray_workers_is_the_same(cli, tmp_path, two_workers):
    folder = record(tmp_path, files(build("1f1b", Shape(40, 8)), replicas=2))  # 80 files: two tasks
    track_path(folder, 50).write_bytes(b"torn")
    alone, together = (cli("diagnose", folder, *extra, "--json").json for extra in ((), ("--ray",)))
    assert alone == together
    assert any("rank-00050" in remark for remark in together["remarks"])


def test_without_ray_one_line_says_what_to_install(cli, shared, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = cli("diagnose", shared / "traces" / "bytedance-st" / "st-kineto", "--ray")
    assert (ran.status, len(ran.err.splitlines())) == (2, 1)
    assert "install debubble[ray]" in ran.err
