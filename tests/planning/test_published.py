"""Published tables become tables of measured runs without a row lost, known by their columns and not by their names."""

import csv
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "benchmarks" / "planner" / "published.py"
SOURCES = {
    "vtrain_a100.csv": ("vtrain multi", "vtrain single"),
    "bigscience_a100.csv": ("bigscience",),
    "ultrascale_h100.csv": ("ultrascale clean",),
    "dgxc_benchmarking.csv": ("dgxc",),
    "megatron_bridge.csv": ("megatron bridge",),
    "misc_published.csv": ("misc",),
    "llm_foundry_fsdp.csv": ("llm foundry",),
}


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def convert(source, out):
    return subprocess.run([sys.executable, TOOL, source, "--out", out], capture_output=True, text=True, check=False)


def test_every_row_of_every_source_is_there(shared, published):
    for source, sets in SOURCES.items():
        given = len(rows_of(shared / "data/throughput" / source))
        assert sum(len(rows_of(published / f"{name}.csv")) for name in sets) == given, source


def test_a_table_is_known_by_its_columns_whatever_it_is_called(shared, tmp_path):
    for number, source in enumerate(SOURCES):
        lines = (shared / "data/throughput" / source).read_text().splitlines()
        (tmp_path / f"table {number}.csv").write_text("\n".join(lines[:30]))
    convert(tmp_path, tmp_path / "out")
    written = {path.stem for path in (tmp_path / "out").glob("*.csv")}
    assert written == {"vtrain multi", *(name for sets in SOURCES.values() for name in sets)} - {"vtrain single"}


def test_the_common_columns_alone_are_a_set_named_after_its_file(tmp_path):
    head = "model,hardware,gpus,tp,pp,dp,cp,ep,vp,mbs,gbs,seq_len,precision,step_time_s,mem_gb\n"
    row = "Llama 3.1 405B,DGX-GB200,512,4,8,16,1,1,8,1,128,8192,FP8,5.2,150\n"
    (tmp_path / "mlperf_v5.csv").write_text(head + row)
    (tmp_path / "our_cluster.csv").write_text(head + row)
    convert(tmp_path, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {"mlperf.csv", "our cluster.csv"}
    found = rows_of(tmp_path / "out" / "mlperf.csv")[0]
    assert (found["model"], found["gpu"], found["precision"], found["chunks"]) == ("llama3-405b", "GB200", "fp8", "8")


def test_a_folder_without_known_tables_says_so_and_writes_nothing(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    ran = convert(tmp_path, tmp_path / "out")
    assert ran.returncode == 1
    assert "none of its tables is known" in ran.stderr
    assert not list((tmp_path / "out").glob("*"))


def test_titles_name_models_word_by_word_and_a_size_is_a_part_of_the_name(tmp_path):
    head = "model,hardware,gpus,tp,pp,mbs,gbs,seq_len,step_time_s\n"
    titles = {"Grok 1 314b Dev BF16": "grok-1", "GPT3-5B": "GPT3-5B", "LLAMA3_70B": "llama3-70b"}
    titles |= {"DeepSeek V3": "deepseek-v3", "Qwen3_30B_a3B": "qwen3-30b-a3b", "Llama 9": "Llama 9"}
    (tmp_path / "t.csv").write_text(head + "".join(f"{title},H100,8,1,1,1,8,4096,1\n" for title in titles))
    convert(tmp_path, tmp_path / "out")
    assert [row["model"] for row in rows_of(tmp_path / "out" / "t.csv")] == list(titles.values())
