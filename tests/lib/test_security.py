"""Nothing in the library or in a page runs code that came with data or weights: no pickle, no remote code, no unsafe YAML."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from paperbook.press import toc
from paperbook.study import paths

# modules whose files run code when they are read
PICKLES = {"pickle", "cPickle", "_pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"}
READERS = {"pandas.read_pickle", "sklearn.externals.joblib", "torch.jit.load", "torch.package.PackageImporter"}
UNSAFE_YAML = {"unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "UnsafeLoader", "FullLoader", "Loader", "CLoader",
               "CFullLoader", "CUnsafeLoader"}  # fmt: skip
MODELS = ("Model", "ForCausalLM", "Pipeline", "ForConditionalGeneration", "ForSequenceClassification", "ForMaskedLM",
          "ForImageClassification", "ForTokenClassification", "ForQuestionAnswering", "AutoencoderKL")  # fmt: skip


def problems(source: str) -> list[str]:
    """``line n: what is wrong`` for each unsafe loading in a module or a cell."""
    tree = ast.parse(source)
    names = dict(_imported(tree))
    return [f"line {line}: {text}" for node in ast.walk(tree) for line, text in _judge(node, names)]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Local name -> what it stands for, wherever in the file it was imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname or alias.name.split(".")[0]), (alias.name if alias.asname else alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield (alias.asname or alias.name), f"{node.module}.{alias.name}"


def _judge(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for module in modules:
            if module.split(".")[0] in PICKLES and not getattr(node, "level", 0):
                yield node.lineno, f"{module} runs code that is hidden in files; use safetensors, JSON or parquet"
    elif isinstance(node, ast.Call):
        yield from _judge_call(node, _dotted(node.func, names))
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in ("trust_remote_code", "allow_pickle") and not _is(value, False):
                yield node.lineno, f"{key.value} must be absent or False"
    elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        dotted = _dotted(node, names)
        if dotted in READERS:
            yield node.lineno, f"{dotted} unpickles; use safetensors, JSON or parquet"
        if dotted.startswith("yaml.") and dotted.removeprefix("yaml.") in UNSAFE_YAML:
            yield node.lineno, f"{dotted} builds any object a file asks for; use yaml.safe_load"


def _judge_call(node: ast.Call, dotted: str) -> Iterator[tuple[int, str]]:
    given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    for name in ("trust_remote_code", "allow_pickle"):
        if name in given and not _is(given[name], False):
            yield node.lineno, f"{name} must be absent or False"
    if dotted == "torch.load" and not _is(given.get("weights_only"), True):
        yield node.lineno, "torch.load without weights_only=True unpickles; better: safetensors"
    if dotted in ("yaml.load", "yaml.load_all"):
        loader = _dotted(given["Loader"], {}) if "Loader" in given else ""
        if not loader.endswith("SafeLoader"):
            yield node.lineno, f"{dotted} without a SafeLoader builds any object a file asks for; use yaml.safe_load"
    owner = dotted.removesuffix(".from_pretrained").split(".")[-1]
    if dotted.endswith(".from_pretrained") and owner.endswith(MODELS) and not _is(given.get("use_safetensors"), True):
        yield node.lineno, f"{owner}.from_pretrained without use_safetensors=True may read a pickle"


def _dotted(node: ast.AST | None, names: dict[str, str]) -> str:
    """``torch.load`` for whatever name it goes by in this file; empty for anything that is no dotted name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _is(node: ast.AST | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def modules() -> list[Path]:
    return sorted((paths.root() / "lib").rglob("*.py"))


def page_sources() -> list[tuple[str, str]]:
    """(page and cell, code) of every code cell of every chapter."""
    return [
        (f"{path.relative_to(paths.root())}, cell {i}", cell.source)
        for slug in toc.chapter_slugs()
        for path in toc.sources(slug).values()
        for i, cell in enumerate(toc.read_source(path).cells)
        if cell.cell_type == "code"
    ]


def test_the_library_loads_nothing_unsafe() -> None:
    assert len(modules()) > 40
    found = [f"{path.relative_to(paths.root())}, {text}" for path in modules() for text in problems(path.read_text("utf-8"))]
    assert not found, "\n".join(["", *found])


def test_the_pages_load_nothing_unsafe() -> None:
    assert page_sources()
    found = [f"{where}, {text}" for where, source in page_sources() for text in problems(source)]
    assert not found, "\n".join(["", *found])


def test_no_profile_trusts_remote_code() -> None:
    profiles = sorted((paths.root() / "chapters").glob("*/profiles/*.yaml"))
    assert profiles
    for path in profiles:
        keys = set(yaml.safe_load(path.read_text(encoding="utf-8")))
        assert not {key for key in keys if "trust" in key or "pickle" in key}, path.name


@pytest.mark.parametrize(("source", "message"), [
    ("AutoModel.from_pretrained(x, use_safetensors=True, trust_remote_code=True)", "trust_remote_code"),
    ("load(x, trust_remote_code=flag)", "trust_remote_code"),
    ("load(x, **{'trust_remote_code': True})", "trust_remote_code"),
    ("import torch\ntorch.load(x)", "line 2: torch.load"),
    ("import torch\ntorch.load(x, weights_only=False)", "torch.load"),
    ("import torch as t\nt.load(x)", "torch.load"),
    ("from torch import load as read\nread(x, weights_only=some)", "torch.load"),
    ("import torch\ntorch.jit.load(x)", "torch.jit.load"),
    ("import pickle", "pickle runs code"),
    ("def f():\n    from joblib import dump", "line 2: joblib"),
    ("import numpy as np, dill", "dill"),
    ("import sklearn.utils, cloudpickle as c", "cloudpickle"),
    ("import pandas as pd\npd.read_pickle(x)", "pandas.read_pickle"),
    ("import numpy as np\nnp.load(x, allow_pickle=True)", "allow_pickle"),
    ("options = {'allow_pickle': yes}", "allow_pickle"),
    ("import yaml\nyaml.load(x)", "yaml.load"),
    ("import yaml\nyaml.load(x, Loader=yaml.FullLoader)", "yaml.FullLoader"),
    ("from yaml import unsafe_load\nunsafe_load(x)", "yaml.unsafe_load"),
    ("from yaml import load\nload(x)", "yaml.load without"),
    ("from transformers import CLIPModel\nCLIPModel.from_pretrained(x)", "use_safetensors"),
    ("import transformers\ntransformers.AutoModelForCausalLM.from_pretrained(x, use_safetensors=False)", "use_safetensors"),
])  # fmt: skip
def test_what_is_unsafe(source: str, message: str) -> None:
    assert any(message in text for text in problems(source)), problems(source)


@pytest.mark.parametrize("source", [
    "import torch\ntorch.load(x, weights_only=True, map_location='cpu')", "import yaml\nyaml.safe_load(x)",
    "import yaml\nyaml.load(x, Loader=yaml.CSafeLoader)", "import numpy as np\nnp.load(x)", "np.load(x, allow_pickle=False)",
    "json.load(x)", "from .pickle import shelf", "AutoModel.from_pretrained(x, use_safetensors=True, trust_remote_code=False)",
    "AutoTokenizer.from_pretrained(x)", "'pickle'  # torch.load(x)", "loader.load(x)",
])  # fmt: skip
def test_what_is_safe(source: str) -> None:
    assert problems(source) == []
