"""What the doctor says of machines that are not this one: what each can do, what a lack costs, what mends it."""

import functools
import shutil
from collections import namedtuple
from importlib import metadata

import pytest

from paperbook.runner import checks, doctor

H200 = checks.Gpu("0", "NVIDIA H200", 141.0)
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def machine(monkeypatch, request):
    """Changes this machine: ``machine(gpus=..., without=..., disk_gb=...)``, then gives the report as one text."""
    monkeypatch.setattr(doctor, "weights", lambda: doctor.Finding("weights", True, False, "all there"))

    def changed(gpus=(), cuda=None, without=(), disk_gb=100.0, problems=()):
        import torch

        from paperbook.runner import plan

        monkeypatch.setattr(checks, "gpus", functools.lru_cache(lambda: tuple(gpus)))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus) if cuda is None else cuda)
        found, which = doctor.find_spec, shutil.which
        monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in without else found(name))
        there = lambda name: None if name.split("-")[0] in without else which(name) or f"/bin/{name}"  # noqa: E731
        monkeypatch.setattr(shutil, "which", there)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, disk_gb * 1e9))
        monkeypatch.setattr(plan, "make", lambda *a, **k: plan.Plan(problems=list(problems)))
        findings = doctor.examine()
        return {f.what: f for f in findings}, {a.what: a for a in doctor.abilities(findings)}, "\n".join(doctor.report(findings))

    return changed


def full(abilities):
    return next(ability for what, ability in abilities.items() if what.endswith("--profile full"))


def test_cpu_only(machine):
    findings, abilities, text = machine()
    assert findings["GPU"].mark == "absent" and not findings["GPU"].needed
    assert abilities["run the smoke and reader profiles"].goes == "yes"
    assert full(abilities).goes == "partly" and "no GPU" in full(abilities).how
    assert abilities["use several GPUs"].goes == "no"
    assert "full profiles would run on the CPU" in " ".join(text.split())


def test_one_gpu(machine):
    findings, abilities, _ = machine(gpus=[H200])
    assert findings["GPU"].good and "NVIDIA H200 (141 GB)" in findings["GPU"].detail
    assert full(abilities) == doctor.Ability(full(abilities).what, "yes", "on NVIDIA H200")
    assert "--gpus-per-run 0.5" in abilities["use several GPUs"].how


def test_eight_gpus(machine):
    _, abilities, _ = machine(gpus=[checks.Gpu(str(i), "NVIDIA H200", 141.0) for i in range(8)])
    assert abilities["use several GPUs"].goes == "yes" and "8 at once" in abilities["use several GPUs"].how


def test_a_gpu_that_torch_cannot_use(machine):
    findings, _, text = machine(gpus=[H200], cuda=False)
    assert not findings["GPU"].good and "pip install -c constraints.txt torch" in text


def test_a_gpu_too_small(machine):
    _, abilities, _ = machine(gpus=[H200], problems=["GPU memory: about 200.0 GB are needed, 141.0 GB are there"])
    assert full(abilities).goes == "no" and "200.0 GB are needed" in full(abilities).how


def test_weights_not_fetched(machine):
    problem = "org/model at 0123: not on this machine; fetch it with: hf download org/model"
    _, abilities, _ = machine(gpus=[H200], problems=[problem])
    assert full(abilities).goes == "no" and full(abilities).how == "not fetched: org/model"


@pytest.mark.parametrize(
    ("lacking", "what", "goes", "mend"),
    [("chromium", "print it as a PDF", "no", "apt-get install chromium"),
     ("npm", "run its tests", "partly", "apt-get install npm"),
     ("ray", "spread runs over machines with Ray", "no", "pip install -c constraints.txt -e '.[cluster]'"),
     ("py_mini_racer", "build the book", "no", "make setup")],
)  # fmt: skip
def test_each_lack_has_a_cost_and_a_cure(machine, lacking, what, goes, mend):
    findings, abilities, text = machine(without=(lacking,))
    assert abilities[what].goes == goes and mend in text
    (finding,) = [f for f in findings.values() if not f.good and f.what not in ("GPU", "versions", "data")]
    assert finding.cost in " ".join(text.split())


def test_little_disk(machine):
    findings, abilities, _ = machine(disk_gb=2.0)
    assert findings["disk"].mark == "MISSING" and abilities["build the book"].goes == "no"


def test_a_package_is_missing(machine, monkeypatch):
    version = metadata.version

    def without(name):
        if name == "papermill":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    findings, abilities, text = machine()
    assert "papermill" in findings["packages"].detail and abilities["build the book"].goes == "no" and "make setup" in text


def test_offline_names_what_to_fetch_first(machine, monkeypatch):
    monkeypatch.setattr(doctor, "weights", lambda: doctor.Finding("weights", False, False, "not fetched: a", "cost", "cure"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, abilities, _ = machine()
    found = abilities["go on without a network"]
    assert found.goes == "partly" and "weights" in found.how and "HF_HUB_OFFLINE" in found.how


def test_lines_fit_a_terminal(machine):
    _, _, text = machine(without=("chromium", "npm", "ray"), disk_gb=1.0)
    assert max(map(len, text.splitlines())) <= 80
