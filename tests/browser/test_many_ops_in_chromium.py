"""Many ops in a real browser: zoomed out the slow rank stands out, zoomed in every single op of a million is there."""

import pytest

from debubble.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of 16 ranks, of which rank 9 is slow, with so many micro-batches."""

    def written(microbatches: int):
        path = tmp_path_factory.mktemp("pages") / f"{microbatches}.html"
        slow = ",".join(["1"] * 9 + ["1.08"] + ["1"] * 6)
        shape = ["show", "1f1b", "-p", "16", "-m", str(microbatches)]
        assert main([*shape, "--rank-scale", slow, "--html", str(path), "--json"]) == 0
        return path

    return written


def test_zoomed_out_the_slow_rank_is_the_row_without_gaps(browser, page):
    browser.open(page(625))
    script = "const v = debubble.views[0]; return v.busy"
    busy = browser.js(script)
    assert max(range(16), key=busy.__getitem__) == 9
    rows = """
        const v = debubble.views[0], pen = v.canvas.getContext("2d"), dpr = devicePixelRatio;
        const from = Math.round(v.x(v.axis * .2)), wide = Math.round(v.width * .6);
        return [...Array(16).keys()].map(rank => {
            const top = pen.getImageData(from * dpr, rank * v.pitch * dpr, wide * dpr, 1).data;
            const [r, g, b] = v.look.idle.match(/[0-9a-f]{2}/g).map(h => parseInt(h, 16));
            let count = 0;
            for (let i = 0; i < top.length; i += 4) if (top[i] === r && top[i + 1] === g && top[i + 2] === b) count++;
            return count / (top.length / 4);
        });
    """
    gaps = browser.js(rows)
    assert gaps[9] < 0.02
    assert min(share for rank, share in enumerate(gaps) if rank != 9) > 0.2


def test_what_a_column_of_pixels_shows_are_the_shares_of_its_ops(browser, page):
    browser.open(page(625))
    script = """
        const v = debubble.views[0], pen = v.canvas.getContext("2d"), dpr = devicePixelRatio;
        const ink = name => v.look[name].match(/[0-9a-f]{2}/g).map(h => parseInt(h, 16));
        const top = 9 * v.pitch * dpr, tall = v.row * dpr;
        const dots = pen.getImageData(v.x(v.axis / 2) * dpr, top, 1, tall).data;
        const is = (y, [r, g, b]) => dots[4 * y] === r && dots[4 * y + 1] === g && dots[4 * y + 2] === b;
        return ["F", "B", "idle"].map(name => [...Array(tall).keys()].filter(y => is(y, ink(name))).length / tall);
    """
    forward, backward, idle = browser.js(script)
    # Rank 9 is always busy in the middle of the run, a third of it with F; a pixel may be mixed at the edge of the two.
    assert forward == pytest.approx(1 / 3, abs=1 / 20)
    assert backward == pytest.approx(2 / 3, abs=1 / 20)
    assert idle == 0


def test_every_op_of_a_million_can_be_reached_by_zooming(browser, page):
    path = page(31_250)
    browser.open(path)
    assert path.stat().st_size < 500_000
    crowded = "return debubble.views[0].crowded()"
    assert browser.js(crowded)
    browser.wheel(0, 8, 50_000, -42)  # 0.8 ** 42: some ten milliseconds of a hundred seconds
    assert not browser.js(crowded)
    op = browser.js("const v = debubble.views[0]; return firstAfter(v.run, 9, (v.from + v.to) / 2)")
    script = "const { run } = debubble.views[0], i = arguments[0];"
    name, middle = browser.js(script + "return [opName(run, i), (run.start[i] + run.end[i]) / 2e6]", op)
    assert browser.hover(0, 9, middle).startswith(f"{name}: ")
    browser.press("n")
    assert "rank 0 " in browser.text(".tip") or "rank 15 " in browser.text(".tip")
    assert browser.complaints() == []


def test_more_ops_than_a_page_holds_open_as_bins_and_say_so(browser, page, monkeypatch):
    from debubble.drawing import html

    monkeypatch.setattr(html, "MOST_OPS", 10_000)
    browser.open(page(625))
    assert "20,000 ops are too many for single boxes" in browser.text("#timelines")
    assert "busy " in browser.hover(0, 9, 1000)
    assert browser.complaints() == []
