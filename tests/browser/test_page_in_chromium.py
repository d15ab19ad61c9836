"""The page in a real browser: it opens from disk alone, and hover, zoom, keys and sliders do what they say."""

import json
import re
from pathlib import Path

import pytest

from debubble.cli.main import main
from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.lower import lower
from debubble.core.schedule import Shape, peak_activations
from debubble.core.simulate import simulate
from debubble.schedules.catalog import build

pytestmark = pytest.mark.slow

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings"

PLAN = ("--model", "llama3-8b", "--gpu", "h100", "--gpus", 8, "--global-batch", 32, "-p", 4, "--tensor", 1)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Write a page by a command line; its path."""
    folder = tmp_path_factory.mktemp("pages")

    def command(*args: object) -> Path:
        path = folder / f"{len(list(folder.iterdir()))}.html"
        assert main([*map(str, args), "--html", str(path), "--json"]) == 0
        return path

    return command


@pytest.fixture(scope="module")
def pages(write) -> dict[str, Path]:
    """A page of each verb that needs no processes."""
    return {
        "show": write("show", "1f1b", "-p", 4, "-m", 8),
        "pairs": write("show", "dualpipe-v", "-p", 4, "-m", 8, "--transfer", "200us"),
        "slices": write("show", "seq1f1b", "-p", 4, "-m", 4, "--slices", 2),
        "one rank": write("show", "1f1b", "-p", 1, "-m", 2),
        "no work": write("show", "1f1b", "-p", 2, "-m", 2, "--forward", 0, "--backward", 0),
        "diagnose": write("diagnose", RECORDINGS / "eight"),
        "why": write("why", RECORDINGS / "four", RECORDINGS / "eight"),
        "plan": write("plan", *PLAN),
        "why of jobs": write("why", RECORDINGS.parent / "four.toml", RECORDINGS.parent / "eight.toml"),
    }


NAMES = ("show", "pairs", "slices", "one rank", "no work", "diagnose", "why", "why of jobs", "plan")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_from_disk_asks_for_nothing_and_complains_of_nothing(browser, pages, name, dark):
    browser.open(pages[name], dark=dark)
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.complaints() == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [500, 1200])
def test_nothing_is_wider_than_the_window(browser, pages, name, width):
    browser.open(pages[name], width)
    assert browser.js("return document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert browser.js("return window.innerWidth") == width


def test_the_order_on_the_page(browser, pages):
    browser.open(pages["why"])
    titles = browser.texts("h2")
    assert titles[:4] == ["Who idles, and when", "How many ranks work at once", "Where the time goes", "Rank by rank"]
    assert titles[-2:] == ["What if", "Take it with you"]
    assert "times the throughput" in browser.text("#verdict p")
    assert browser.text("#verdict code").startswith("debubble diagnose ")
    assert len(browser.texts(".tile")) == 4


@pytest.mark.parametrize(("name", "some"), [("diagnose", "Findings"), ("why", "Side by side"), ("plan", "Layouts, ")])
def test_sections_of_one_verb_stand_in_order_between_the_ranks_and_the_sliders(browser, pages, name, some):
    browser.open(pages[name])
    titles = browser.texts("h2")
    own = browser.js("return JSON.parse(document.querySelector('#data').textContent).sections.map(s => s.title)")
    assert titles[titles.index("Rank by rank") + 1 : titles.index("What if")] == own
    assert any(title.startswith(some) for title in own)
    assert browser.text("#verdict code").startswith("debubble ")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_stage_that_works_longest_is_darkest_and_can_be_read(browser, pages, dark):
    browser.open(pages["diagnose"], dark=dark)
    script = """
        const cells = [...document.querySelectorAll("section[aria-label='Replicas by stages'] td")];
        cells.forEach(cell => cell.className = "heat");
        return [.06, .5, 1].map((share, i) => {
            cells[i].style = `--heat: ${100 * share}%`;
            const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
            const look = getComputedStyle(cells[i]);
            return [look.color, look.backgroundColor].map(colour => {
                pen.fillStyle = colour;
                pen.fillRect(0, 0, 1, 1);
                return `rgb(${[...pen.getImageData(0, 0, 1, 1).data].slice(0, 3)})`;
            });
        });
    """
    pairs = browser.js(script)
    assert all(contrast(*pair) >= 4.5 for pair in pairs)
    assert [luminance(back) for _, back in pairs] == sorted((luminance(back) for _, back in pairs), reverse=True)


def test_pointing_at_a_gap_says_which_op_on_which_rank(browser, pages):
    browser.open(pages["show"])
    assert "before 0B0: it needs 1B0 on rank 1, which ends at 10 ms" in browser.hover(0, 0, 7)
    assert "(cool-down)" in browser.hover(0, 3, 31)
    assert browser.hover(0, 1, 9).startswith("1B0: backward of stage 1, micro-batch 0")
    assert browser.js(
        "const t = debubble.views[0].tip.getBoundingClientRect(); return t.right <= innerWidth && t.left >= 0"
    )


def span(browser, view: int = 0) -> tuple[float, float]:
    """What a timeline shows, in milliseconds."""
    return tuple(browser.js("const v = debubble.views[arguments[0]]; return [v.from / 1e6, v.to / 1e6]", view))


def test_ctrl_and_the_wheel_zoom_around_the_pointer_and_dragging_pans(browser, pages):
    browser.open(pages["show"])
    browser.wheel(0, 1, 11, -5)
    first, last = span(browser)
    assert last - first == pytest.approx(33 * 0.8**5, rel=1e-3)
    assert (11 - first) / (last - first) == pytest.approx(1 / 3, abs=0.01)
    browser.drag(0, 1, 14, 11)
    assert span(browser)[0] == pytest.approx(first + 3, abs=0.1)
    browser.wheel(0, 1, 14, 12)
    assert span(browser) == (0, 33)


def test_the_wheel_alone_scrolls_the_page(browser, pages):
    browser.open(pages["show"], height=400)
    browser.place(0, 1, 11)
    before = browser.js("return scrollY")
    browser.wheel(0, 1, 11, 1, ctrl=False)
    browser.wait(f"return scrollY > {before}")
    assert span(browser) == (0, 33)


def test_w_a_s_d_move_as_in_perfetto_once_the_pointer_is_over_the_picture(browser, pages):
    browser.open(pages["show"])
    body = browser.driver.find_element("tag name", "body")
    browser.js("document.activeElement.blur()")
    body.send_keys("w")
    assert span(browser) == (0, 33)  # the pointer is elsewhere
    browser.hover(0, 1, 11)
    body.send_keys("w")
    assert span(browser) == pytest.approx((5.5, 22), abs=0.05)  # half as wide, 11 ms where it was
    body.send_keys("d")
    assert span(browser)[0] == pytest.approx(5.5 + 16.5 / 5, abs=0.05)
    body.send_keys("a", "s", "s")
    assert span(browser) == (0, 33)


def test_keys_typed_into_a_control_are_its_own(browser, pages):
    browser.open(pages["show"])
    browser.hover(0, 1, 11)
    browser.driver.find_element("name", "schedule").send_keys("w")
    assert span(browser) == (0, 33)


MEASURED = "return document.querySelector('.told').textContent"


def test_a_range_is_measured_by_dragging_with_shift_and_cleared_by_escape(browser, pages):
    browser.open(pages["show"])
    browser.drag(0, 0, 0.01, 3, shift=True)
    assert browser.js(MEASURED).startswith("2.9")
    assert span(browser) == (0, 33)
    browser.press("\ue00c")
    assert browser.js(MEASURED) == ""
    browser.js("debubble.views[0].measure([3e6, 0])")
    assert browser.js(MEASURED) == (
        "3 ms, from 0 ms to 3 ms: forward 50.0 %, idle 50.0 % (rank 3 most, 100.0 %; rank 0 least, 0.0 %)."
    )


def test_what_is_shown_is_measured_by_a_key_on_both_runs(browser, pages):
    browser.open(pages["why"])
    browser.press("+", "m")
    told = browser.texts(".told")[:2]
    assert all("idle " in sentence for sentence in told)
    assert told[0].split(":")[0] == told[1].split(":")[0]
    browser.press("\ue00c", view=1)
    assert browser.texts(".told")[:2] == ["", ""]


def test_memory_over_time_is_drawn_below_and_said(browser, pages):
    browser.open(pages["show"])
    canvas = browser.js("return document.querySelectorAll('#timelines .picture canvas')[1]")
    assert "rank 0 holds the most, 4." in canvas.get_attribute("aria-label")
    x = browser.place(0, 0, 7)[1][0]
    browser._mouse("mouseMoved", canvas, x, 30)
    tip = browser.js("return document.querySelectorAll('#timelines .tip')[1].textContent")
    assert tip.startswith("At 7 ms ranks hold 4, 3, 2, 1 micro-batches") or "ranks hold 4, 3, 2, 1 " in tip


def test_contents_lead_to_every_section_and_the_page_says_when_it_was_made(browser, pages):
    browser.open(pages["plan"], height=500)
    links = browser.texts("#contents a")
    assert links == browser.texts("main > section > h2")
    browser.js("[...document.querySelectorAll('#contents a')].at(-1).click()")
    browser.wait("return document.querySelector('#take h2').getBoundingClientRect().top < innerHeight")
    assert browser.js("return location.hash") == ""
    assert re.fullmatch(r"debubble \S+, \d{4}-\d\d-\d\d \d\d:\d\d UTC", browser.text("#made"))


def test_a_wide_table_is_a_list_of_names_and_values_on_a_narrow_screen(browser, pages):
    browser.open(pages["plan"], 500)
    wide = "return [...document.querySelectorAll('.wide')].filter(w => w.scrollWidth > w.clientWidth + 1).length"
    assert browser.js(wide) == 0
    names = "return [...document.querySelectorAll('.cards td:not(.bar)')].every(td => td.dataset.head !== undefined)"
    assert browser.js(names)
    before = "const td = document.querySelector('#ranks .cards td'); return getComputedStyle(td, '::before').content"
    assert browser.js(before) == '"compute ms"'


def test_a_label_keeps_clear_of_its_value(browser, pages):
    for width in (500, 800, 1200):
        browser.open(pages["show"], width)
        gaps = browser.js("""
            const labels = [...document.querySelectorAll('.controls label')];
            return labels.filter(label => label.querySelector('output')).map(label => {
                const words = document.createRange();
                words.selectNodeContents(label.firstChild);
                const right = Math.max(...[...words.getClientRects()].map(box => box.right));
                return label.querySelector('output').getBoundingClientRect().left - right;
            });
        """)
        assert min(gaps) >= 8


def test_keys_zoom_pan_and_show_all(browser, pages):
    browser.open(pages["show"])
    browser.press("+")
    assert span(browser) == pytest.approx((8.25, 24.75))
    browser.press("\ue014")  # arrow right
    assert span(browser)[0] == pytest.approx(8.25 + 16.5 / 5)
    browser.press("\ue012", "-", "-")  # arrow left
    assert span(browser) == (0, 33)
    browser.press("+", "+", "0")
    assert span(browser) == (0, 33)


def test_n_and_p_walk_through_the_longest_gaps(browser, pages):
    browser.open(pages["show"])
    tip = "return debubble.views[0].tip.textContent"
    browser.press("n")
    first = browser.js(tip)
    assert " 6 ms, " in first
    browser.press("n")
    assert browser.js(tip) != first
    browser.press("p")
    assert browser.js(tip) == first
    browser.press("\ue00c")  # escape
    assert browser.js("return debubble.views[0].tip.hidden && debubble.views[0].mark === null")


def test_buttons_do_what_the_keys_do(browser, pages):
    browser.open(pages["show"])
    browser.js("document.querySelector('[aria-label=\"zoom in\"]').click()")
    assert span(browser) == pytest.approx((8.25, 24.75))
    browser.js("document.querySelector('[aria-label=\"show all\"]').click()")
    assert span(browser) == (0, 33)


def test_two_runs_share_one_time_axis(browser, pages):
    browser.open(pages["why"])
    assert span(browser, 0) == span(browser, 1)
    browser.wheel(1, 0, 500, -3)
    assert span(browser, 0) == span(browser, 1)
    assert span(browser)[0] > 0


def expected(name: str, shape: Shape, **rates) -> dict[str, float]:
    schedule = build(name, shape)
    spent = account(simulate(lower(schedule), costs_of(Rates(**rates), schedule)))
    peak = float(peak_activations(schedule).max())
    return {"window": spent.window, "idleShare": spent.idle_share, "bubbleRatio": spent.bubble_ratio, "peak": peak}


def answer(browser) -> dict[str, float]:
    found = browser.js("return debubble.answer")
    return {key: found[key] for key in ("window", "idleShare", "bubbleRatio", "peak")}


def test_sliders_answer_what_the_python_answers(browser, pages):
    browser.open(pages["show"])
    assert answer(browser) == expected("1f1b", Shape(4, 8))
    browser.slide("microbatches", 19)
    assert answer(browser) == expected("1f1b", Shape(4, 19))
    browser.slide("schedule", "zb-h1")
    assert answer(browser) == expected("zb-h1", Shape(4, 19))
    browser.slide("ranks", 8)
    assert answer(browser) == expected("zb-h1", Shape(8, 19), forward=0.5e6, backward=1e6)
    browser.slide("transfer", 25)
    assert answer(browser) == expected("zb-h1", Shape(8, 19), forward=0.5e6, backward=1e6, transfer=0.25e6)
    assert "times the samples per second of a GPU" in browser.text("#answer")


def test_sliders_of_a_plan_start_at_its_window_and_a_balanced_pipeline_idles_as_its_formula_says(browser, pages):
    browser.open(pages["plan"])
    window, ranks = browser.js("const { run } = debubble.views[0]; return [run.window, run.ranks]")
    assert answer(browser)["window"] == pytest.approx(window, rel=1e-3)
    for name, value in {"schedule": "1f1b", "transfer": 0, "imbalance": 0, "microbatches": 12}.items():
        browser.slide(name, value)
    assert ranks == 4
    assert answer(browser)["idleShare"] == pytest.approx(3 / 15, abs=1e-6)  # (p-1)/(m+p-1)


def test_a_shape_that_a_schedule_does_not_take_is_said_with_the_nearest(browser, pages):
    browser.open(pages["show"])
    browser.slide("schedule", "interleaved")
    browser.slide("chunks", 2)
    assert answer(browser) == expected("interleaved", Shape(4, 8, 2))
    browser.slide("microbatches", 10)
    assert browser.text("#answer") == "interleaved takes micro-batches in multiples of 4: nearest 8 or 12."
    browser.js("document.querySelector('[name=reset]').click()")
    assert answer(browser) == expected("1f1b", Shape(4, 8))


def test_imbalance_can_be_taken_away(browser, write):
    browser.open(write("show", "1f1b", "-p", 4, "-m", 8, "--stage-scale", "1,1,1,1.6"))
    scaled = {"forward": 1e6, "backward": 2e6}
    assert answer(browser) == expected("1f1b", Shape(4, 8), **scaled, stage_scale=(1, 1, 1, 1.6))
    browser.slide("imbalance", 0)
    even = {key: value * 1.15 for key, value in scaled.items()}
    assert answer(browser) == expected("1f1b", Shape(4, 8), **even)


def test_an_order_that_the_page_cannot_build_is_simulated_as_it_is(browser, pages):
    browser.open(pages["pairs"])
    assert answer(browser) == expected("dualpipe-v", Shape(4, 8, 2), transfer=0.2e6)
    assert browser.js("return document.querySelector('[name=microbatches]').disabled")
    browser.slide("transfer", 0)
    assert answer(browser) == expected("dualpipe-v", Shape(4, 8, 2))


@pytest.mark.parametrize("name", ["show", "diagnose", "why"])
def test_causes_ranks_and_zones_sum_to_the_window_in_the_tables(browser, pages, name):
    browser.open(pages[name])
    numbers = """
        const cells = row => [...row.cells].map(cell => cell.textContent.replace(/(\\d),(?=\\d)/g, "$1"));
        return [...document.querySelectorAll(arguments[0])].map(table => [...table.tBodies[0].rows].map(cells));
    """
    windows = browser.js("return debubble.views.map(v => v.run.window / 1e6)")

    def rounding(cells: list[str]) -> float:
        """What a sum may be off by, of numbers printed to so many digits."""
        return 0.51 * len(cells) * 10 ** -min(len(cell.partition(".")[2]) for cell in cells)

    for rows, window in zip(browser.js(numbers, "#causes table"), windows, strict=True):
        parts = [row[1] for row in rows[:-1]]
        assert sum(map(float, parts)) == pytest.approx(window, abs=rounding(parts))
        assert float(rows[-1][1]) == pytest.approx(window, abs=rounding([rows[-1][1]]))
    for rows, window in zip(browser.js(numbers, "#ranks table"), windows, strict=True):
        assert all(sum(map(float, row[1:6])) == pytest.approx(window, abs=rounding(row[1:6])) for row in rows)
    for rows, window in zip(browser.js(numbers, "#working table"), windows, strict=True):
        assert sum(float(row[2]) for row in rows) == pytest.approx(window, abs=0.01)


def test_things_to_take_are_made_in_the_page(browser, pages):
    browser.open(pages["show"])
    assert browser.texts("summary")[-6:-2] == [
        "The command that shows this",
        "Launch it: flags and configuration",
        "The schedule as PyTorch's CSV (torchtitan: pipeline_parallel_schedule_csv)",
        "A trace for ui.perfetto.dev, every gap with its reason",
    ]
    browser.js("document.querySelectorAll('#take details').forEach(d => { d.open = true; })")
    browser.wait("return document.querySelectorAll('#take pre').length === 6")
    command, launch, csv, trace, ops, document = browser.texts("#take pre")
    assert command == "debubble show 1f1b -p 4 -m 8"
    assert "--pipeline-model-parallel-size 4" in launch
    assert csv.splitlines()[0].startswith("0F0,0F1,0F2,0F3,0B0,0F4")
    assert trace.startswith('{"displayTimeUnit":"ns"')
    assert ops.startswith("rank,op,kind")
    assert json.loads(document)["bubble_ratio"] == 0.375


def test_every_picture_is_said_in_a_sentence(browser, pages):
    browser.open(pages["why"])
    said = "[c.getAttribute('role'), c.getAttribute('aria-label'), c.tabIndex]"
    sentences = browser.js(f"return [...document.querySelectorAll('.picture canvas')].map(c => {said})")
    assert len(sentences) == 7  # of each run its timeline, memory and ranks at work; and what the sliders simulate
    assert all(role == "img" and len(text) > 40 and index == 0 for role, text, index in sentences)


def luminance(colour: str) -> float:
    parts = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


COLOURS = """
    const probe = document.createElement("i"), out = {};
    document.body.append(probe);
    for (const name of arguments[0]) {
        probe.style.color = `var(--${name})`;
        out[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return out;
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast_is_aa(browser, pages, dark):
    browser.open(pages["show"], dark=dark)
    kinds = ["F", "B", "I", "W", "F2", "B2", "I2", "W2"]
    look = browser.js(COLOURS, ["page", "card", "text", "soft", "ink", "accent", "idle", *kinds])
    assert (luminance(look["page"]) < 0.1) == dark
    texts = [("text", "page"), ("text", "card"), ("soft", "page"), ("soft", "card"), ("page", "text")]
    assert all(contrast(look[a], look[b]) >= 4.5 for a, b in [*texts, *(("ink", kind) for kind in kinds)])
    assert contrast(look["accent"], look["page"]) >= 3


def test_kinds_differ_without_colour(browser, pages):
    browser.open(pages["pairs"])
    script = """
        const pen = document.createElement("canvas").getContext("2d"), look = palette(pen);
        return ["F", "B", "I", "W"].map(kind => {
            const path = new Path2D();
            path.rect(0, 0, 16, 16);
            fill(pen, look, kind, path);
            const dots = pen.getImageData(0, 0, 16, 16).data;
            const light = [...Array(256).keys()].map(i => dots[4 * i] + dots[4 * i + 1] + dots[4 * i + 2]);
            return light.map(sum => sum < .9 * Math.max(...light) ? "#" : ".").join("");
        });
    """
    assert len(set(browser.js(script))) == 4


def test_a_hostile_name_is_text_in_the_browser(browser, tmp_path):
    name = "<img src=x onerror=alert(1)>"
    folder = tmp_path / name
    folder.mkdir()
    for file in (RECORDINGS / "four").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    assert main(["why", str(folder), str(RECORDINGS / "eight"), "--html", str(tmp_path / "p.html"), "--json"]) == 0
    browser.open(tmp_path / "p.html")
    assert name in browser.text("h1")
    assert browser.js("return document.images.length") == 0
    assert browser.complaints() == []
    assert len(browser.requests()) == 1


def test_it_draws_when_a_frame_gives_it_a_size_late(browser, pages, tmp_path):
    frame = tmp_path / "frame.html"
    inside = f'<iframe src="{pages["show"].as_uri()}" width=800 height=600></iframe>'
    frame.write_text(f'<body><div id="box" style="display:none">{inside}</div>')
    browser.driver.get(frame.as_uri())
    browser.js("document.querySelector('#box').style.display = 'block'")
    browser.driver.switch_to.frame(0)
    browser.wait("return document.body.dataset.ready === 'yes' && debubble.views[0].canvas.width > 300")
    dots = "c.getContext('2d').getImageData(0, 0, c.width, 20).data"
    browser.wait(f"const c = debubble.views[0].canvas; return [...{dots}].some(Boolean)")
    browser.driver.switch_to.default_content()
