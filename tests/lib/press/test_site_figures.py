"""Figure data beside the built pages: one file a figure, under its name; nothing is lost, nothing stale stays."""

from __future__ import annotations

import base64
import hashlib
import json
from types import SimpleNamespace

import pytest

from paperbook.press.site import figures

CSV = "# panel 1\npanel,series,x,y\n1,ours,1,2\n"


def cell(*bundles: dict, name: str | None = None, glued: str | None = None) -> dict:
    metadata = {"scrapbook": {"name": glued}} if glued else {}
    outputs = [{"output_type": "display_data", "data": data, "metadata": metadata} for data in bundles]
    return {"cell_type": "code", "metadata": {"mystnb": {"figure": {"name": name}}} if name else {}, "outputs": outputs}


def png(text: str) -> str:
    return base64.b64encode(text.encode()).decode() + "\n"


def test_files_are_called_after_the_figure_the_key_or_the_cell() -> None:
    picture = {"image/png": png("a"), "text/csv": CSV}
    glued = {f"application/papermill.record/{mime}": value for mime, value in picture.items()}
    document = {"cells": [
        cell(picture, picture, name="fig-one"), cell(picture, name="fig-one"), cell(picture, name="fig-one-2"), cell(picture),
        cell(glued, glued="key"), cell({"image/png": png("b")}),
        cell({"text/html": "<b>", "text/csv": [CSV, "1,ours,2,3\n"]}, name="../x"),
    ]}  # fmt: skip
    found = figures.of_notebook(document)
    assert [one.name for one in found] == ["fig-one", "fig-one-2", "fig-one-3", "fig-one-2-2", "cell-3", "key", "x"]
    assert found[0].shown == hashlib.sha256(b"a").hexdigest() and found[-1].shown == hashlib.sha256(b"<b>").hexdigest()
    assert [one.rows for one in found] == [1] * 6 + [2]


@pytest.mark.parametrize(("text", "count"), [("", 0), ("# only\n", 0), ("a,b\n", 0), (CSV, 1), (CSV + "\n", 1)])
def test_rows_are_counted_without_comments_and_header(text: str, count: int) -> None:
    assert figures.rows(text) == count


def test_what_myst_nb_cannot_show_is_taken_out_of_its_source() -> None:
    document = {"cells": [cell({"image/png": png("a"), "text/csv": CSV}), {"cell_type": "markdown", "source": "x"}]}
    source = [json.dumps(document)]
    figures._without_data(None, "book/pages/demo/1-page", source)
    assert json.loads(source[0])["cells"][0]["outputs"][0]["data"] == {"image/png": png("a")}
    for name, text in (("book/intro", json.dumps(document)), ("book/pages/demo/1-page", '{"cells": []}')):
        source = [text]
        figures._without_data(None, name, source)
        assert source == [text]


def test_each_build_writes_all_files_and_drops_stale_ones(here) -> None:
    page = here.page("1-method")
    data = json.loads(page.read_text())
    data["cells"].append(cell({"image/png": png("a"), "text/csv": CSV}, name="fig") | {"source": "", "execution_count": 1})
    page.write_text(json.dumps(data))
    app = SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=here.root / "out",
                          env=SimpleNamespace(found_docs={"book/pages/demo-one/1-method"}))  # fmt: skip
    folder = here.root / "out" / "_data" / "demo-one"
    stale = folder / "1-method" / "old.csv"
    stale.parent.mkdir(parents=True)
    stale.write_text("x")
    figures._write(app, RuntimeError("a failed build changes nothing"))
    assert stale.exists()
    for _ in range(2):  # the second build reads no page anew
        figures._write(app, None)
        assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.csv"))] == ["1-method/fig.csv"]
        assert (folder / "1-method" / "fig.csv").read_text() == CSV
        (folder / "1-method" / "fig.csv").unlink()
    app.env.found_docs = set()
    figures._write(app, None)
    assert not list(folder.rglob("*.csv"))
