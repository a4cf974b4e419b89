"""Options and safety nets common to all tests."""

import inspect
import os
import re
import signal
import sys
import types
from pathlib import Path

import pytest

# processes run side by side: more threads than cores cost up to 20 times (set before numpy and torch are imported)
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# under nohup the hang-up signal is ignored, and Ctrl-C in a script's background job; so they would be in the processes that tests
# start and then stop. A handler of our own is not inherited; the one for hang-ups does nothing, so the tests go on.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--shapes", action="store_true", help="check types and array shapes of every call into paperbook")


def pytest_configure(config):
    if config.getoption("--shapes"):
        _check_shapes()


def _check_shapes():
    """Check every function that says a shape, at call time; an int counts as a float, as in the type system.

    Functions without a jaxtyping annotation are left to mypy: their own checks accept more than their annotation says
    (a list for an array), and must, to answer bad input in their own words.
    """
    from beartype import BeartypeConf, beartype
    from jaxtyping import install_import_hook

    checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
    shaped = re.compile(r"\b(Float|Int|Integer|Bool|UInt8|Num|Real|Shaped)\[")
    module = types.ModuleType("paperbook_typechecker")

    def check(function):
        annotations = getattr(function, "__annotations__", {})
        return checked(function) if any(shaped.search(str(a)) for a in annotations.values()) else function

    module.check = check
    sys.modules[module.__name__] = module
    install_import_hook("paperbook", f"{module.__name__}.check")


@pytest.fixture(autouse=True)
def _own_errors_only_where_errors_are_expected(request):
    """A test of bad input must meet the library's own message, not the checker's: it runs unchecked."""
    if not request.config.getoption("--shapes"):
        yield
        return
    from jaxtyping import config

    expects_errors = "raises" in inspect.getsource(request.function)
    config.update("jaxtyping_disable", expects_errors)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def standins(tmp_path_factory):
    """Small models and data of the schemas of the real ones, each built once a session (`rehearsal.standins`)."""
    from rehearsal.standins import StandIns

    return StandIns(tmp_path_factory.mktemp("standins"))


@pytest.fixture(scope="session")
def rehearse(request, tmp_path_factory):
    """Runs a page with its full profile on small sizes and checks what it did (`rehearsal.harness`)."""
    from rehearsal.harness import Rehearse
    from rehearsal.warm import WarmKernels

    folder = tmp_path_factory.mktemp("rehearsals")
    # forking after CUDA has started breaks it; and one kernel alone has nothing to share
    several = sum("rehearse" in getattr(item, "fixturenames", ()) for item in request.session.items) > 1
    warm = WarmKernels(folder) if several and os.environ.get("PAPERBOOK_REHEARSE_ON") != "cuda" else None
    yield Rehearse(folder, warm)
    if warm:
        warm.close()
