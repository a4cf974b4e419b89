"""The full profiles walk their own code path end to end on a CPU: Pendulum stands in for HalfCheetah, sizes are small."""

from __future__ import annotations

from typing import Any

import numpy as np

from paperbook.papers.reward_poisoning.config_attacks import WhiteBoxConfig
from paperbook.papers.reward_poisoning.config_deep import GymnasiumConfig
from paperbook.study.paths import chapter
from paperbook.study.profiles import read_yaml

SLUG, PAGE, PROFILE = "reward-poisoning", "6-gymnasium", "6-gymnasium.full.yaml"
IDLE = {"table_horizon", "ranks", "targets"}  # of the tables, which the profile leaves out
SMALL: dict[str, Any] = {
    "environment": "Pendulum-v1", "device": "cpu", "horizon": 6, "max_actions": 4, "target_steps": 160, "learning_starts": 100,
    "buffer": 1000, "d": 8, "hidden": 8, "batch": 16, "feature_steps": 24, "data_episodes": 24, "support_states": 4, "splits": 2,
    "episodes": 24, "copies": 4,
}  # fmt: skip
REASONS = {"environment": "HalfCheetah needs MuJoCo, which the tests do not install; the code path is the same"}


def test_full_path_end_to_end(rehearse: Any) -> None:
    values = read_yaml(chapter(SLUG) / "profiles" / PROFILE)
    assert set(GymnasiumConfig.model_fields) - set(values) == {"seed", *IDLE}, "the profile names every other parameter"
    found = rehearse(SLUG, PAGE, PROFILE, SMALL, seed=3, reasons=REASONS).metrics
    study = found["d8"]
    assert set(study["victims"]) == {"none", "at", "white-box"} and study["marks"][-1] == 24
    assert study["victims"]["none"]["cost"][-1] == 0 < study["victims"]["at"]["cost"][-1]
    # four of the torques -2, -1, 0, 1, 2: an action lies within 1 of the nearest, whichever is missing
    assert 0 < study["rounding"] <= 1 and len(study["certificate"]["free"]) == 1, "one theta for all time"
    for record in study["victims"].values():
        assert np.all(np.diff(record["cost"]) >= 0) and record["deviations"][-1] <= 24


def test_the_profile_is_accepted() -> None:
    """At its own sizes: what it needs is said, and the discounted programme is the one it must take."""
    cfg = GymnasiumConfig(**read_yaml(chapter(SLUG) / "profiles" / PROFILE))
    assert cfg.needs().gpu_gb and cfg.certificate == "discounted" and cfg.environment == "HalfCheetah-v5" and cfg.d == 1024
    assert [asset.name for asset in cfg.assets()] == ["the package mujoco"]


def test_all_draws_attacked(rehearse: Any) -> None:
    values = read_yaml(chapter(SLUG) / "profiles" / "full.yaml")
    assert set(WhiteBoxConfig.model_fields) - set(values) == {"seed"}, "the profile names every other parameter"
    found = rehearse(SLUG, "3-white-box", "full.yaml", {"n_instances": 14, "episodes": 400}, seed=4).metrics
    assert found["claims"]["bound_ratio"] <= 1.00001 and found["claims"]["obedient_cost"] == 0
    assert 0 < sum(found["counts"]["none"]["attackable"].values()) < 14
    assert found["counts"]["none"]["attackable"]["attacked"] == 0, "without an attack nobody gives way"
