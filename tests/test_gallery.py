"""The gallery is what its command draws now."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "examples" / "gallery"
_spec = importlib.util.spec_from_file_location("gallery_draw", GALLERY / "draw.py")
gallery = sys.modules["gallery_draw"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gallery)

REDRAW = "python examples/gallery/draw.py draws the gallery anew: look at the difference before you commit it"


@pytest.mark.parametrize("picture", [*gallery.CASES, *gallery.SCHEDULES], ids=lambda picture: picture.name)
def test_a_picture_is_what_its_command_draws(picture, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    gallery.draw(picture, tmp_path)
    name = f"{picture.name}.svg"
    assert (tmp_path / name).read_text() == (GALLERY / name).read_text(), REDRAW


def test_the_index_shows_every_picture():
    text = (GALLERY / "README.md").read_text()
    assert text == gallery.index(), REDRAW
    shown = set(re.findall(r"!\[[^]]*\]\(([^)]+)\)", text))
    assert shown == {path.name for path in GALLERY.glob("*.svg")}


def test_pictures_of_the_readme_are_in_the_gallery():
    shown = re.findall(r"!\[[^]]*\]\(\S+/(examples/gallery/[^)]+)\)", (ROOT / "README.md").read_text())
    assert len(shown) >= 2
    assert all((ROOT / path).is_file() for path in shown)
