"""Whatever is given, the answer is faults or one error with a remedy: random setups, random files, random scripts."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from debubble.config.config import NUMBERS, Config
from debubble.core.errors import InputError
from debubble.frameworks.catalog import FRAMEWORKS, read_file, script_pairs
from debubble.frameworks.keys import read_config
from debubble.planning.check import check

sizes = st.sampled_from([None, None, -1, 0, 1, 2, 3, 4, 6, 7, 8, 12, 16, 30, 64, 10**5, 10**15])
words = st.sampled_from([None, None, "1F1B", "Interleaved1F1B", "ZBVZeroBubble", "afab", "x"])
layouts = st.sampled_from([None, None, None, "Et|tL", "E|t|||L", "Et*3|m|L", "x|y", "(t|)*4", "|"])


@st.composite
def setups(draw) -> Config:
    numbers = {name: draw(sizes) for name in NUMBERS}
    split = draw(st.none() | st.lists(st.integers(0, 9), max_size=5).map(tuple))
    rampup = draw(st.none() | st.lists(st.integers(0, 64), max_size=4).map(tuple))
    return Config(**numbers, split=split, rampup=rampup, layout=draw(layouts), schedule=draw(words))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setup=setups())
@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_any_setup_is_judged_without_an_exception(name, setup):
    checked = check(FRAMEWORKS[name], setup)
    assert checked.legal == (not checked.faults)
    assert all(fault.key and fault.rule for fault in checked.faults)


@settings(max_examples=40, deadline=None)
@example(setup=Config(layers=1, first=0, last=0))
@example(setup=Config(split=(0, 0, 0, 1), layout="Et|tL"))  # two stages in the one, four in the other
@given(setup=setups())
@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_every_alternative_mends_its_fault(name, setup):
    backend = FRAMEWORKS[name]
    for fault in check(backend, setup).faults:
        for other in fault.alternatives:
            assert getattr(setup, other.field) != other.value
            mended = setup.changed(**{other.field: other.value})
            left = {(backend.key(each.fields[0]), backend.worded(each.rule)) for each in backend.broken(mended).faults}
            assert (fault.key, fault.rule) not in left  # another key may break the same rule still


SNIPPETS = st.sampled_from(
    [
        "A=1\n",
        "B=$A\n",
        "A=$B\n",
        "--num-layers $A ",
        "--x=${Y:-3}",
        "$((A*2))",
        "$((",
        "${",
        '"',
        "'",
        "(",
        ")",
        "=(",
        "\\\n",
        "#",
        "--",
        "\x00",
        "\u202e",
        "é",
    ]
)


@settings(max_examples=200, deadline=None)
@given(text=st.lists(SNIPPETS, max_size=30).map("".join))
def test_any_script_is_read_to_an_end(text):
    with suppress(InputError):
        read_config(FRAMEWORKS["megatron"], script_pairs(text))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200))
@pytest.mark.parametrize("suffix", [".json", ".yaml", ".toml", ".py", ".sh"])
def test_any_file_is_read_or_refused(tmp_path: Path, suffix, raw):
    (tmp_path / f"any{suffix}").write_bytes(raw)
    with suppress(InputError):
        read_config(FRAMEWORKS["nemo"], read_file(tmp_path / f"any{suffix}")[0].pairs)
