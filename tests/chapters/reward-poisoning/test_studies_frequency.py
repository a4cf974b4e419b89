"""How common robustness is: shares against an implementation of our own that is independent of this one, and what must hold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbook.papers.reward_poisoning import studies_frequency as study
from paperbook.papers.reward_poisoning.certificate import SolverInaccurate
from paperbook.papers.reward_poisoning.config_frequency import FrequencyConfig
from paperbook.papers.reward_poisoning.mdp import LinearMDP
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.params import ParameterError, configure

SMALL: dict[str, Any] = {"n_instances": 4, "d_grid": [3, 5], "A_grid": [3], "H_grid": [1, 3], "feature_grid": [2],
                         "latent_grid": [1, 8]}  # fmt: skip


@pytest.mark.parametrize("dim", list(study.EARLIER))
def test_shares_agree_with_the_earlier_implementation(dim: int) -> None:
    found = study.frequency(study.Setting(dim=dim), 100, np.random.default_rng([17, dim]))
    # both shares are of random draws (100 and 400): 4 standard errors of the difference
    assert study.largest_z([(study.Setting(dim=dim), found)]) < 4, (found.share("attackable"), study.EARLIER[dim])


def test_a_wrong_share_would_be_seen() -> None:
    """The comparison has teeth: the shares of d = 3 put in the place of d = 8 lie far outside."""
    found = study.frequency(study.Setting(dim=3), 100, np.random.default_rng(0))
    assert study.largest_z([(study.Setting(dim=8), found)]) > 5
    assert study.largest_z([(study.Setting(dim=8, actions=4), found)]) == 0, "other families have no earlier value"
    n, share = 100, found.share("attackable")
    pooled = (n * share + 400 * 0.81) / 500
    by_hand = abs(share - 0.81) / np.sqrt(pooled * (1 - pooled) / n + pooled * (1 - pooled) / 400)
    assert study.largest_z([(study.Setting(dim=8), found)]) == pytest.approx(by_hand)


def test_tables_are_attackable_and_dense_kernels_are_not() -> None:
    """T6; and with dense kernels the target visits every state from the second step on, so little is left free."""
    rng = np.random.default_rng(1)
    table = study.frequency(study.Setting(tabular=True, latent_support=2), 12, rng)
    assert table.share("attackable") == 1 and table.eps.min() > 0.5
    dense = study.frequency(study.Setting(latent_support=8), 40, rng)
    assert dense.interval()[1] < 0.25 and dense.free.max() < table.free.min()


def test_kinds_are_what_the_cap_does() -> None:
    """Counted in another way: what is attackable under a twentyfold cap was attackable or cap-limited, and nearly all of it is
    (one of these draws needs a cap of about 80)."""
    one, many = (study.frequency(study.Setting(), 40, np.random.default_rng(3), cap_factor=c) for c in (1.0, 20.0))
    assert set(one.kind) >= {0, 1, 2} and not (one.kind == 3).any()
    assert (many.eps >= one.eps - 1e-6).all()  # more room never hurts
    assert not (many.eps[one.kind == 2] > 1e-6).any() and (many.eps[one.kind == 0] > 0).all()
    limited = many.eps[one.kind == 1]
    assert (limited > 0).mean() >= 0.5 and (one.eps[one.kind == 1] < 0).all()
    assert np.array_equal(one.eps > 0, one.kind == 0)
    assert one.share("attackable") + one.share("cap-limited") + one.share("structurally-robust") == pytest.approx(1)


def test_a_smaller_cap_attacks_less() -> None:
    shares = []
    for cap in (0.8, 1.0, 3.0):
        shares.append(study.frequency(study.Setting(dim=8), 25, np.random.default_rng(5), cap_factor=cap).share("attackable"))
    assert shares == sorted(shares)


def test_a_solver_that_gives_up_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins: eps is found at the first or second tolerance, the cap-free optimum only at the last or clear of 0 or not."""
    asked: list[float] = []

    class Answer:
        def __init__(self, tol: float, uncapped: tuple[float, float]) -> None:
            self.tol, self.attackable, self.eps = tol, False, -0.3
            self._value, self._reached = uncapped

        @property
        def eps_uncapped(self) -> float:
            if self.tol < self._reached:
                raise SolverInaccurate("no")
            return self._value

        @property
        def kind(self) -> str:
            return "cap-limited" if self.eps_uncapped >= self.tol else "structurally-robust"

    def run(eps_reached: float, value: float, reached: float) -> tuple[float, str]:
        def solver(*_: Any, tol: float, **__: Any) -> Answer:
            asked.append(tol)
            if tol < eps_reached:
                raise SolverInaccurate("no")
            return Answer(tol, (value, reached))

        monkeypatch.setattr(study, "certify", solver)
        found, kind = study.certified(None, None, 1.0)  # type: ignore[arg-type]
        return found.tol, kind

    assert run(1e-6, -0.4, 1e-6) == (1e-6, "structurally-robust") and asked == [1e-6]
    assert run(1e-6, -0.4, 1e-2) == (1e-6, "structurally-robust"), "eps stays as fine as it was"
    assert run(1e-4, 0.4, 1e-2) == (1e-4, "cap-limited")
    assert run(1e-6, -0.005, 1e-2) == (1e-6, "undecided"), "not clear of 0 by the tolerance"
    with pytest.raises(SolverInaccurate):
        run(1.0, 0.0, 1.0)


def test_free_share_by_hand() -> None:
    """H = 2, d = 3: one pinned feature at the first step, two different ones at the second: 3 of 6 directions are fixed."""
    phi = np.array([[[1, 0, 0], [0, 1, 0]], [[0, 1, 0], [0, 0, 1]], [[0, 0, 1], [1, 0, 0]]], dtype=float)
    mu = np.zeros((2, 3, 3))
    mu[:, 0] = [0, 0.5, 0.5]
    mu[:, 1:] = [1, 0, 0]
    mdp = LinearMDP(phi, mu, np.zeros((2, 3)))
    assert study.free_share(mdp, np.zeros((2, 3), dtype=int)) == pytest.approx(0.5)
    assert study.free_share(mdp, np.array([[1, 0, 0], [0, 0, 0]])) == pytest.approx(4 / 6)  # goes to state 0 alone


def test_another_action_never_helps_the_attacker() -> None:
    ladder = study.action_ladder(6, seed=2, actions=5)
    assert ladder.shape == (6, 4) and np.diff(ladder, axis=1).max() <= 2e-6  # each eps is known to 1e-6
    assert (np.diff(ladder, axis=1) < -1e-3).any(), "and sometimes hurts"


def test_fewer_actions_keep_the_target() -> None:
    mdp, target = study.Setting(actions=5).draw(np.random.default_rng(0))
    small, same = study.fewer_actions(mdp, target, 3)
    assert small.actions == 3
    for h in range(3):
        for s in range(8):
            assert np.array_equal(small.phi[s, same[h, s]], mdp.phi[s, target[h, s]])
    assert small.policy_q(same)[0, 0, same[0, 0]] == pytest.approx(mdp.policy_q(target)[0, 0, target[0, 0]])
    with pytest.raises(ValueError, match="keep"):
        study.fewer_actions(mdp, np.arange(3)[:, None] + np.zeros((3, 8), dtype=int), 2)


def test_draws_are_what_they_say() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        mdp, target = study.Setting(tabular=True, latent_support=3).draw(rng)
        assert ((mdp.P() > 0).sum(axis=3) == 3).all() and mdp.dim == 24
        assert mdp.optimal_q()[0, 0, target[0, 0]] < mdp.optimal_q()[0, 0].max(), "there is something to attack"
        mdp, target = study.Setting(feature_support=4, latent_support=2, targets="random").draw(rng)
        assert ((mdp.phi > 0).sum(axis=2) == 4).all() and ((mdp.mu > 0).sum(axis=2) == 2).all()
    actions = np.concatenate([study.Setting(targets="random").draw(rng)[1].ravel() for _ in range(100)])
    # 2,400 uniform actions: a share of 1/3 to 4 standard errors of 0.0096
    assert np.bincount(actions) / len(actions) == pytest.approx(np.full(3, 1 / 3), abs=0.039)


def test_the_study_and_its_axes() -> None:
    cfg = FrequencyConfig(**SMALL)
    found = study.frequency_study(cfg)
    assert [s.dim for s, _ in found["d"]] == [3, 5] and [s.latent_support for s, _ in found["latent_support"]] == [1, 8]
    assert len(found["phase"]) == 4 and all(len(r.eps) == 4 for cells in found.values() for _, r in cells)
    assert found["d"][1][1] is found["A"][0][1], "one setting, one draw"
    wider = study.frequency_study(FrequencyConfig(**{**SMALL, "d_grid": [3, 5, 8]}))
    assert np.array_equal(wider["d"][1][1].eps, found["d"][1][1].eps), "a longer grid changes nothing"
    other = study.frequency_study(FrequencyConfig(**SMALL, seed=1))
    assert not np.array_equal(other["d"][1][1].eps, found["d"][1][1].eps)


def test_a_killed_study_goes_on(tmp_path: Path) -> None:
    cfg = FrequencyConfig(**SMALL)
    whole = study.frequency_study(cfg)

    class Killed(Exception):
        pass

    def kill(done: int, total: int, what: str) -> None:
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        study.frequency_study(cfg, kill, Checkpoints(tmp_path, {"run": "a"}, every_seconds=0))
    steps: list[int] = []
    again = study.frequency_study(cfg, lambda done, *_: steps.append(done), Checkpoints(tmp_path, {"run": "a"}, every_seconds=0))
    assert steps[0] == 4
    for axis, cells in whole.items():
        for (_, one), (_, two) in zip(cells, again[axis], strict=True):
            assert np.array_equal(one.eps, two.eps) and np.array_equal(one.kind, two.kind)


def test_bins() -> None:
    cells = [study.Frequency(np.zeros(4), np.array([0, 2, 0, 1]), np.array([0.1, 0.1, 0.6, 1.0]))]
    assert study.by_free_share(cells, np.array([0, 0.5, 1.0])) == [(0.25, 1, 2), (0.75, 1, 2)]
    assert study.by_free_share(cells, np.array([0.2, 0.5, 0.55])) == []
    assert [low < high for low, high in pairwise([cells[0].interval()[0], *cells[0].interval()])][1]


def test_bad_input_is_named() -> None:
    for values, word in [({"actions": 1}, "actions"), ({"latent_support": 9}, "latent_support"),
                         ({"feature_support": 6}, "feature_support"), ({"targets": "best"}, "targets"),
                         ({"horizon": 0}, "horizon")]:  # fmt: skip
        with pytest.raises(ValueError, match=word):
            study.Setting(**values)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"d_grid": [5, 3]}, "d_grid"), ({"A_grid": [1, 2]}, "A_grid"), ({"latent_support": 9}, "latent_support"),
        ({"feature_support": 4}, "feature_support"), ({"feature_grid": [6]}, "feature_grid"),
        ({"latent_grid": [9]}, "latent_grid"), ({"n_instance": 3}, "n_instances"),
    ]  # fmt: skip
    for values, word in wrong:
        with pytest.raises(ParameterError, match=word):
            configure(FrequencyConfig, values)
    with pytest.raises(ValueError, match="instances"):
        study.frequency(study.Setting(), 0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="kind"):
        study.Frequency(np.zeros(1), np.zeros(1, int), np.zeros(1)).share("robust")
    assert FrequencyConfig().needs().memory_gb and FrequencyConfig().work().amount > 0
