"""Pictures of the landing page and of a chapter's page, for whoever wants to see what a change did: _build/screenshots."""

from pathlib import Path

import pytest
from PIL import Image

OUT = Path(__file__).resolve().parents[2] / "_build" / "screenshots"


@pytest.mark.parametrize(("width", "device"), [(1280, "desktop"), (390, "phone")])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["landing", "chapter"])
def test_take(reader, heaviest, kind, scheme, width, device):
    OUT.mkdir(parents=True, exist_ok=True)
    page = reader("book/intro.html" if kind == "landing" else heaviest, width, scheme)
    path = OUT / f"{kind}-{device}-{scheme}.png"
    page.screenshot(path=path)
    with Image.open(path) as picture:
        darkness = picture.convert("L").resize((1, 1)).getpixel((0, 0))
        assert picture.width == width
        assert (darkness < 100) == (scheme == "dark")
