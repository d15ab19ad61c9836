"""A real Chromium, driven by Selenium: what it loaded, what it complained about, what it drew, and how long it took."""

import json
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]

CTRL, SHIFT = 2, 8  # bits of a mouse event's modifiers


class Browser:
    """One window."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, path: Path, width: int = 1200, height: int = 1000, *, dark: bool = False) -> None:
        """Load a page from disk and wait until it is drawn."""
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.set_window_size(width, height)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": theme})
        self.driver.get(path.as_uri())
        self.wait("return document.body && document.body.dataset.ready === 'yes'")

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Until a condition holds in the page."""
        until = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < until, f"never: {condition}; {self.complaints()}"
            time.sleep(0.02)

    def js(self, script: str, *args):
        """Run a function body in the page."""
        return self.driver.execute_script(script, *args)

    def text(self, selector: str) -> str:
        """All text of the first element."""
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        """The text of every element."""
        return self.js("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def requests(self) -> list[str]:
        """Addresses of everything that was asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the console holds."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def hover(self, view: int, rank: int, time_ms: float) -> str:
        """Move the mouse to a rank and time of a timeline; what the tip then says."""
        canvas, (x, y) = self.place(view, rank, time_ms)
        self._mouse("mouseMoved", canvas, x, y)
        return self.js("const v = debubble.views[arguments[0]]; return v.tip.hidden ? '' : v.tip.textContent", view)

    def place(self, view: int, rank: int, time_ms: float):
        """Where a rank and time are, in pixels of the window."""
        canvas = self.js("return debubble.views[arguments[0]].canvas", view)
        self.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
        script = (
            "const v = debubble.views[arguments[0]]; return [v.x(arguments[2] * 1e6), (arguments[1] + .5) * v.pitch]"
        )
        return canvas, self.js(script, view, rank, time_ms)

    def wheel(self, view: int, rank: int, time_ms: float, notches: int, *, ctrl: bool = True) -> None:
        """Turn the wheel over a place of a timeline; with Ctrl negative notches zoom in."""
        canvas, (x, y) = self.place(view, rank, time_ms)
        for _ in range(abs(notches)):
            delta = 100 if notches > 0 else -100
            self._mouse("mouseWheel", canvas, x, y, deltaX=0, deltaY=delta, modifiers=CTRL if ctrl else 0)

    def drag(self, view: int, rank: int, from_ms: float, to_ms: float, *, shift: bool = False) -> None:
        """Drag a place of a timeline to where another one is."""
        canvas, (x, y) = self.place(view, rank, from_ms)
        _, (to, _) = self.place(view, rank, to_ms)
        button = {"button": "left", "clickCount": 1, "modifiers": SHIFT if shift else 0}
        self._mouse("mousePressed", canvas, x, y, **button)
        self._mouse("mouseMoved", canvas, to, y, buttons=1, **button)
        self._mouse("mouseReleased", canvas, to, y, **button)

    def _mouse(self, kind: str, canvas, x: float, y: float, **more) -> None:
        corner = self.js("const box = arguments[0].getBoundingClientRect(); return [box.left, box.top]", canvas)
        place = {"type": kind, "x": corner[0] + x, "y": corner[1] + y}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", place | more)

    def press(self, *keys: str, view: int = 0) -> None:
        """Press keys on a timeline that has the focus."""
        self.js("debubble.views[arguments[0]].canvas.focus()", view)
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def slide(self, name: str, value) -> None:
        """Set a slider or choice as a hand does, and let it tell the page."""
        self.js(
            "const e = document.querySelector(`[name=${arguments[0]}]`); e.value = arguments[1];"
            "e.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )

    def cpu(self) -> float:
        """Seconds that the page's main thread has worked."""
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    def picture(self, path: Path) -> None:
        """Write what the whole page looks like."""
        import base64

        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A window of Chromium that keeps its files in a folder; tests are skipped, and say so, where it cannot be had."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    started.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, whatever else runs
    yield Browser(started)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # selenium leaves its pipes to the collector
        started.quit()
