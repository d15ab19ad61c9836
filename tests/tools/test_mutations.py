"""Mutations of lines: each kind is made, each is Python, and what only people read is left alone."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def mutations():
    sys.path.insert(0, str(TOOLS))
    try:
        import mutations

        return mutations
    finally:
        sys.path.remove(str(TOOLS))


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a is not b", {"x = a is  b"}),
        ("x = a not in b", {"x = a  in b"}),
        ("x = (a) + (b)", {"x = (a) - (b)", "x = a"}),
        ("x //= b", {"x *= b"}),
        ("x = a and b", {"x = a or b", "x = a", "x = b"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = 1", {"x = 2", "x = 0"}),
        ("x = 0", {"x = 1"}),
        ("x = 4096", {"x = 8192"}),
        ("x = True", {"x = False"}),
        ("x = .5", {"x = 1.0"}),
        ("x = min(a, b)", {"x = max(a, b)", "x = a", "x = b"}),
        ("x = len(a)", {"x = (len(a) - 1)"}),
        ("x = sorted(a)", {"x = list(a)"}),
        ("x = abs(a)", {"x = (a)"}),
        ("x = a if b else c", {"x = c if b else a"}),
        ("x = Kind.I", {"x = Kind.W"}),
        ("x = a.all()", {"x = a.any()"}),
        ("a.append(b)", {"pass"}),
    ],
)
def test_each_kind_of_change_is_made(mutations, line, becomes):
    assert {each.after for each in mutations.mutations(line)} == becomes


@pytest.mark.parametrize(
    "line",
    [
        'raise ValueError(f"{a + 1} > {b}")',
        '"""A text of 3 < 4."""',
        "x: dict[str, int] | None = None",
        "@dataclass(frozen=True)\nclass A: ...",
        'x = f"{a + b:.3f}"',
        'x = a + "text"',
        "zip(a, b, strict=True)\nif TYPE_CHECKING: ...",
        "x = np.array(a, copy=False)",
    ],
)
def test_what_people_read_and_how_it_is_done_are_left_alone(mutations, line):
    assert [each.after for each in mutations.mutations(line) if each.after != "pass"] == []


def test_a_name_becomes_its_twin_only_where_the_function_knows_both(mutations):
    source = "def f(start, end):\n    return start\n\ndef g(start):\n    return start\n"
    assert [(each.line, each.after) for each in mutations.mutations(source)] == [(2, "    return end")]


def test_places_are_those_of_characters_though_the_tree_counts_bytes(mutations):
    (change,) = mutations.mutations('x = "···" if a < b else "█"')[:1]
    assert change.after in ('x = "···" if a <= b else "█"', 'x = "█" if a < b else "···"')
    assert change.is_python('x = "···" if a < b else "█"')


def test_one_line_of_the_file_changes_and_no_other_like_it(mutations):
    source = "x = a < b\nx = a < b\n"
    change = mutations.mutations(source)[1]
    assert change.applied(source) == "x = a < b\nx = a <= b\n"
