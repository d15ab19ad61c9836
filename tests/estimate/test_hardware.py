"""Hardware files: every figure with its source, and against a table of datasheets by others."""

import csv
import tomllib

import pytest

from debubble.core.errors import InputError
from debubble.estimate.hardware import FOLDER, known_hardware, read_hardware

ASKED = "A100-40GB A100-80GB B200 B300 GB200 GB300 H100 H200 MI300X MI325X MI355X"


def test_all_devices_are_there():
    assert " ".join(known_hardware()) == ASKED


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda f: f.stem)
def test_every_figure_has_its_source(file):
    table = tomllib.loads(file.read_text())
    figures = {key for key, value in table.items() if isinstance(value, (int, float))}
    assert figures == set(table["sources"])
    assert all(text.strip() for text in table["sources"].values())


def test_figures_agree_with_the_table_of_datasheets(shared):
    aliases = {"B200-SXM": "B200", "B300-SXM": "B300"}
    with (shared / "data/throughput/gpu_specs.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            device = read_hardware(aliases.get(row["gpu"], row["gpu"]))
            assert device.peak("bf16") == pytest.approx(float(row["bf16_dense_tflops"]) * 1e12, rel=0.021), row[
                "source"
            ]
            assert device.memory == float(row["hbm_gb"]) * 1e9, row["source"]
            assert device.memory_rate == pytest.approx(float(row["hbm_tb_s"]) * 1e12, rel=0.01), row["source"]
            assert device.link == float(row["nvlink_or_xgmi_unidir_gb_s"]) * 1e9, row["source"]
            assert device.peer == float(row["p2p_unidir_gb_s"]) * 1e9, row["source"]


def test_a_mistyped_device_gets_the_nearest():
    with pytest.raises(InputError, match="h100"):
        read_hardware("H10O")


def test_a_users_file_needs_few_figures_and_says_which_it_lacks(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("bf16_tflops = 400\nmemory_gb = 96\nmemory_tb_s = 4\n")
    with pytest.raises(InputError, match="link_gb_s: it is missing"):
        read_hardware(str(path))
    path.write_text(path.read_text() + "link_gb_s = 300\n")
    assert read_hardware(str(path)).peak("fp8") == 400e12


def test_a_figure_that_is_none_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('bf16_tflops = -1\nmemory_gb = "much"\nmemory_tb_s = inf\nlink_gb_s = 300\nspeed = 3\n')
    with pytest.raises(InputError) as caught:
        read_hardware(str(path))
    assert len(caught.value.faults) == 4


def test_a_file_that_nests_too_deeply_is_refused_as_any_that_is_no_toml(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 20_000)
    with pytest.raises(InputError, match="it cannot be read"):
        read_hardware(str(path))
