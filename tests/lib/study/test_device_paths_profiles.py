"""Devices, paths and profiles: found by name, refused by name."""

import pytest
import torch

from paperbook.study import paths
from paperbook.study.device import pick_device, pick_dtype
from paperbook.study.profiles import list_profiles, load_profile
from paperbook.study.show import glue

CPU = torch.device("cpu")


def test_auto_takes_what_there_is():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == CPU and pick_dtype("auto", CPU) == torch.float32
    assert pick_dtype("bfloat16", CPU) == torch.bfloat16


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "mps:0:1", "meta"])
def test_a_device_that_is_not_here(name):
    with pytest.raises(ValueError, match=r"device: .*" + name):
        pick_device(name)


def test_an_unknown_number_format():
    with pytest.raises(ValueError, match="dtype: .*got 'half'"):
        pick_dtype("half", CPU)


@pytest.mark.parametrize("slug", ["../etc", "A", "", "a/b", ".hidden"])
def test_a_slug_cannot_walk_out_of_its_folder(slug):
    with pytest.raises(ValueError, match="slug: expected lower-case"):
        paths.chapter(slug)


def test_a_root_without_a_project_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERBOOK_ROOT", str(tmp_path))
    with pytest.raises(ValueError, match="PAPERBOOK_ROOT"):
        paths.root()


def test_a_path_outside_is_named_without_its_folder(repository, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere") / "x.json"
    assert paths.relative(other) == "x.json" and paths.relative(repository / "a" / "b") == "a/b"


def test_the_main_page_has_the_plain_profile_and_others_their_own(repository):
    folder = repository / "chapters" / "toy" / "profiles"
    (folder / "2-page.reader.yaml").write_text("profile: reader\nsteps: 7\n")
    assert load_profile("toy", "1-page", "reader")["steps"] == 20
    assert load_profile("toy", "2-page", "reader")["steps"] == 7
    assert list_profiles("toy") == ["2-page.reader.yaml", "reader.yaml"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("- 1\n", "expected a mapping"), ("profile: huge\n", "profile: expected one of"), ("a: [\n", "not valid YAML"),
     ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML")],
)  # fmt: skip
def test_bad_profiles(repository, content, message):
    (repository / "chapters" / "toy" / "profiles" / "reader.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_profile("toy", "1-page", "reader")


def test_a_missing_profile_names_those_there_are(repository):
    with pytest.raises(FileNotFoundError, match=r"no full\.yaml; its profiles are: reader\.yaml"):
        load_profile("toy", "1-page", "full")


def test_glue_is_silent_without_myst_nb(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "myst_nb", None)
    assert glue("x", 1) is None
