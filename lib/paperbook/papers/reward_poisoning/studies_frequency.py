"""How common is robustness: certificates of many random instances, counted (page 5). Nothing here plots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from paperbook.papers.reward_poisoning.certificate import AttackabilityCertificate, SolverInaccurate, certify
from paperbook.papers.reward_poisoning.config_frequency import FrequencyConfig
from paperbook.papers.reward_poisoning.mdp import (
    FloatArray,
    IntArray,
    LinearMDP,
    random_instance,
    random_linear_mdp,
    tabular_linear_mdp,
)
from paperbook.papers.reward_poisoning.sampled import wilson
from paperbook.study.arguments import choice, generator, integer, number
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.seeds import rng as stream

Report = Callable[[int, int, str], None]
"""Called with (done, in all, what), as :meth:`paperbook.study.results.Run.progress`."""
KINDS = ("attackable", "cap-limited", "structurally-robust", "undecided")
EARLIER = {3: 0.42, 5: 0.67, 8: 0.81, 12: 0.95}
"""Shares of attackable instances by d, from 400 draws each of the same generator (S = 8, A = 3, H = 3, 2 latents a feature,
deterministic latent kernels) by an implementation of our own that is independent of this one: cvxpy, row by row."""
EARLIER_DRAWS = 400
TOLERANCES = (1e-6, 1e-4, 1e-2)  # of eps, in turn: near a degenerate optimum the first may be out of the solver's reach


@dataclass(frozen=True)
class Setting:
    """A family of random instances: sizes, states in a latent kernel's support, latents in a feature's; targets.

    `targets` is "hacked" (optimal for a reward uniform on [-1, 1]^d; instances whose first target action is optimal anyway are
    rejected) or "random" (each action uniform). `tabular` takes one-hot features instead, d = S A, each (s, a) with
    `latent_support` successors; `dim` and `feature_support` are then ignored.

    Raises:
        TypeError, ValueError: naming the field.
    """

    states: int = 8
    actions: int = 3
    horizon: int = 3
    dim: int = 5
    latent_support: int = 1
    feature_support: int = 2
    targets: str = "hacked"
    tabular: bool = False

    def __post_init__(self) -> None:
        integer("states", self.states, 1)
        integer("actions", self.actions, 2)
        integer("horizon", self.horizon, 1)
        integer("dim", self.dim, 1)
        integer("latent_support", self.latent_support, 1, self.states)
        integer("feature_support", self.feature_support, 1, None if self.tabular else self.dim)
        choice("targets", self.targets, ("hacked", "random"))

    def draw(self, rng: np.random.Generator) -> tuple[LinearMDP, IntArray]:
        """One instance: the MDP and its target (H, S)."""
        generator("rng", rng)
        options: dict[str, Any] = {"latent_support": self.latent_support, "feature_support": self.feature_support, "rng": rng}
        sizes = self.states, self.actions, self.horizon, self.dim
        if self.targets == "hacked" and not self.tabular:
            return random_instance(*sizes, **options)
        while True:
            mdp = self._table(rng) if self.tabular else random_linear_mdp(*sizes, **options)
            if self.targets == "random":
                return mdp, rng.integers(self.actions, size=(self.horizon, self.states))
            target = mdp.optimal_policy(rng.uniform(-1, 1, size=mdp.theta.shape))
            first = mdp.optimal_q()[0, mdp.s0]
            if first[target[0, mdp.s0]] < first.max() - 1e-9:  # as random_instance
                return mdp, target

    def _table(self, rng: np.random.Generator) -> LinearMDP:
        P = np.zeros((self.states, self.actions, self.states))
        for row in P.reshape(-1, self.states):
            row[rng.choice(self.states, self.latent_support, replace=False)] = rng.dirichlet(np.ones(self.latent_support))
        return tabular_linear_mdp(P, rng.uniform(size=(self.states, self.actions)), self.horizon)


@dataclass(frozen=True, eq=False)
class Frequency:
    """Certificates of n draws: eps* (n,), the kind of each (n,) as a position in :data:`KINDS`, and the share of all H d
    directions that the target's own rewards leave free (n,)."""

    eps: FloatArray
    kind: IntArray
    free: FloatArray

    def share(self, kind: str) -> float:
        """Share of a kind."""
        return float((self.kind == KINDS.index(choice("kind", kind, KINDS))).mean())

    def interval(self, kind: str = "attackable") -> tuple[float, float]:
        """Its 95 % Wilson interval."""
        return wilson(int((self.kind == KINDS.index(choice("kind", kind, KINDS))).sum()), len(self.kind))


def frequency(setting: Setting, instances: int, rng: np.random.Generator, cap_factor: float = 1.0, q_mode: str = "optimal"
              ) -> Frequency:  # fmt: skip
    """Certify `instances` draws of a setting, cap = `cap_factor` sqrt(d); nothing is left out, whatever its eps."""
    number("cap_factor", cap_factor, 0.0, open_low=True)
    rows = []
    for _ in range(integer("instances", instances, 1)):
        mdp, target = setting.draw(rng)
        found, kind = certified(mdp, target, cap_factor * mdp.dim**0.5, q_mode)
        rows.append((found.eps, KINDS.index(kind), free_share(mdp, target)))
    eps, kind, free = np.array(rows).T
    return Frequency(eps, kind.astype(np.int64), free)


def certified(mdp: LinearMDP, target: IntArray, cap: float, q_mode: str = "optimal") -> tuple[AttackabilityCertificate, str]:
    """The certificate to the finest of :data:`TOLERANCES` that the solver reaches, and its kind: one draw must not end a study.

    A kind that was found at a coarser tolerance than eps stands only where the cap-free optimum is clear of 0 by it; otherwise
    the draw is "undecided".

    Raises:
        SolverInaccurate: where even the coarsest tolerance of eps is not reached.
    """
    found: AttackabilityCertificate | None = None
    for tol in TOLERANCES:
        try:
            answer = certify(mdp, target, cap=cap, q_mode=q_mode, tol=tol)
            found = answer if found is None else found
            if found.attackable is not False:
                return found, found.kind
            if tol == TOLERANCES[0] or abs(answer.eps_uncapped) > tol:
                return found, answer.kind
        except SolverInaccurate:
            continue
    if found is None:
        raise SolverInaccurate(f"certified: expected eps to {TOLERANCES[-1]:g}, got no such answer from the solver")
    return found, "undecided"


def free_share(mdp: LinearMDP, target: IntArray) -> float:
    """Share of the H d directions of theta that cost invariance does not fix: 1 - sum_h rank(pinned features) / (H d)."""
    support = mdp.support(target)
    ranks = [np.linalg.matrix_rank(mdp.phi[support[h], target[h, support[h]]], tol=1e-9) for h in range(mdp.horizon)]
    return 1 - float(sum(ranks)) / (mdp.horizon * mdp.dim)


def fewer_actions(mdp: LinearMDP, target: IntArray, keep: int) -> tuple[LinearMDP, IntArray]:
    """The same MDP with `keep` actions a state: the target's (of any step) first, then the others in order.

    Raises:
        ValueError: where the target needs more than `keep` actions in some state.
    """
    order = np.empty((mdp.states, mdp.actions), dtype=np.int64)
    for s in range(mdp.states):
        used = np.unique(target[:, s])
        if len(used) > integer("keep", keep, 1, mdp.actions):
            raise ValueError(f"keep: expected at least {len(used)}, the actions of the target in state {s}, got {keep}")
        order[s] = np.concatenate([used, np.setdiff1d(np.arange(mdp.actions), used)])
    phi = np.take_along_axis(mdp.phi, order[:, :, None], axis=1)[:, :keep]
    place = np.argsort(order, axis=1)
    return LinearMDP(phi, mdp.mu, mdp.theta, mdp.s0), place[np.arange(mdp.states)[None], target]


def action_ladder(instances: int, seed: int, actions: int = 6) -> FloatArray:
    """eps* of `instances` draws with 2, 3, ... actions of one and the same MDP (instances, actions - 1): never increasing.

    The target plays one action in each state, whatever the step, so that two actions can hold it.
    """
    rng = stream(seed, "frequency", "ladder")
    out = np.zeros((integer("instances", instances, 1), integer("actions", actions, 2) - 1))
    for row in out:
        mdp = random_linear_mdp(8, actions, 3, 8, rng=rng)
        target = np.tile(rng.integers(actions, size=8), (3, 1))
        row[:] = [certify(*fewer_actions(mdp, target, keep)).eps for keep in range(2, actions + 1)]
    return out


def settings_of(cfg: FrequencyConfig) -> dict[str, list[Setting]]:
    """The families of the page by axis: one parameter moves, the others stay at the base; and d x H for the phase plot."""
    base: dict[str, Any] = {"states": cfg.S, "actions": cfg.A, "horizon": cfg.H, "dim": cfg.d,
                            "latent_support": cfg.latent_support, "feature_support": cfg.feature_support}  # fmt: skip
    axes: dict[str, tuple[str, Iterable[int]]] = {
        "d": ("dim", cfg.d_grid), "A": ("actions", cfg.A_grid), "H": ("horizon", cfg.H_grid),
        "feature_support": ("feature_support", cfg.feature_grid), "latent_support": ("latent_support", cfg.latent_grid),
    }  # fmt: skip
    found = {axis: [Setting(**{**base, name: value}) for value in values] for axis, (name, values) in axes.items()}
    found["tabular"] = [Setting(**{**base, "feature_support": 1, "latent_support": k}, tabular=True) for k in (1, 2)]
    found["random targets"] = [Setting(**{**base, "feature_support": cfg.d}, targets="random")]
    found["phase"] = [Setting(**{**base, "dim": d, "horizon": h}) for h in cfg.H_grid for d in cfg.d_grid]
    return found


def frequency_study(
    cfg: FrequencyConfig, progress: Report | None = None, checkpoints: Checkpoints | None = None
) -> dict[str, list[tuple[Setting, Frequency]]]:
    """Every setting of :func:`settings_of`, certified `cfg.n_instances` times; a setting of two axes is drawn once.

    Each setting has a random stream of its own, named by its values, so a longer grid does not change what is there already.
    """
    axes = settings_of(cfg)
    cells = list(dict.fromkeys(setting for settings in axes.values() for setting in settings))
    done: list[Frequency] = []
    resumed = checkpoints.resume() if checkpoints is not None else None
    if resumed is not None:
        done = [Frequency(*(cell[name] for name in ("eps", "kind", "free"))) for cell in resumed.values["cells"]]
    for i in range(len(done), len(cells)):
        rng = stream(cfg.seed, "frequency", *(str(value) for value in astuple(cells[i])))
        done.append(frequency(cells[i], cfg.n_instances, rng, cfg.cap_factor, cfg.q_mode))
        if progress is not None:
            progress(i + 1, len(cells), "settings")
        if checkpoints is not None and (checkpoints.due() or i + 1 == len(cells)):
            checkpoints.save(i + 1, values={"cells": [vars(cell) for cell in done]})
    known = dict(zip(cells, done, strict=True))
    return {axis: [(setting, known[setting]) for setting in settings] for axis, settings in axes.items()}


def largest_z(found: Iterable[tuple[Setting, Frequency]]) -> float:
    """How many standard errors the shares by d lie from :data:`EARLIER`, the largest of all d that are known; 0.0 for none.

    The standard error is that of a difference between two shares of independent draws, pooled.
    """
    most = 0.0
    for setting, result in found:
        if setting.dim in EARLIER and asdict(setting) == asdict(Setting(dim=setting.dim)):
            n, share, before = len(result.kind), result.share("attackable"), EARLIER[setting.dim]
            pooled = (n * share + EARLIER_DRAWS * before) / (n + EARLIER_DRAWS)
            error = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / EARLIER_DRAWS))
            most = max(most, abs(share - before) / float(error))
    return most


def by_free_share(results: Iterable[Frequency], edges: FloatArray) -> list[tuple[float, int, int]]:
    """Attackable instances by how much is free: (middle of the bin, attackable, all) for each bin of `edges` that has any."""
    cells = list(results)
    free, good = np.concatenate([c.free for c in cells]), np.concatenate([c.kind == 0 for c in cells])
    out = []
    for low, high in itertools.pairwise(edges):
        at = (free >= low) & ((free < high) | (high == edges[-1]) & (free <= high))
        if at.any():
            out.append(((low + high) / 2, int(good[at].sum()), int(at.sum())))
    return out
