"""Hardware files: every figure with its source, and against a table of datasheets by others."""

import csv
import tomllib

import pytest

from debubble.core.errors import InputError
from debubble.core.units import byte_rate
from debubble.estimate.hardware import FOLDER, known_hardware, read_hardware

ASKED = (
    "A10 A100-40GB A100-80GB A800 B200 B300 GB200 GB300 GH200 H100 H20 H200 H800 L40S MI250X MI300X MI325X MI355X "
    "RTX4090 RTX5090 TPU-v5p V100"
)


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


# What vendors print: dense 16-bit TFLOP/s, GB, TB/s of memory, GB/s to all peers one way.
PRINTED = {
    "RTX4090": (165.2, 24, 1.008, 31.5),
    "RTX5090": (209.5, 32, 1.792, 63),
    "L40S": (362, 48, 0.864, 31.5),
    "A10": (125, 24, 0.6, 31.5),
    "V100": (125, 32, 0.9, 150),
    "H20": (148, 96, 4.0, 450),
    "H800": (989, 80, 3.35, 200),
    "A800": (312, 80, 2.039, 200),
    "MI250X": (383 / 2, 128 / 2, 3.2 / 2, 200),
    "GH200": (990, 96, 4.0, 450),
    "TPU-v5p": (459, 95, 2.765, 600),
}


@pytest.mark.parametrize("name", PRINTED)
def test_figures_are_those_that_vendors_print(name):
    device = read_hardware(name)
    found = device.peak("bf16") / 1e12, device.memory / 1e9, device.memory_rate / 1e12, device.link / 1e9
    assert found == pytest.approx(PRINTED[name])
    assert device.usable < device.memory * 1.08


@pytest.mark.parametrize(("text", "rate"), [("400Gb/s", 50e9), ("400Gbps", 50e9), ("10GB/s", 10e9), ("50GB", 50e9)])
def test_bits_and_bytes_a_second_are_told_apart(text, rate, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        f'bf16_tflops = 400\nmemory_gb = "96GB"\nmemory_tb_s = "4TB/s"\nlink_gb_s = 300\nnic_gb_s = "{text}"\n'
    )
    found = read_hardware(str(path))
    assert (found.nic, found.memory, found.memory_rate) == (rate, 96e9, 4e12)
    assert byte_rate(text) == rate
