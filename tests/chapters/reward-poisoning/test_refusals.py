"""Bad input is refused by name, before any work."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning import bandits, certificate, mdp, sampled, teaching

MDP, TARGET = mdp.random_instance(5, 3, 3, 4, rng=np.random.default_rng(0))


@pytest.mark.parametrize("call, error, text", [
    (lambda: certificate.certify(MDP, [[0], [0, 1]]), ValueError, "target: expected rows"),
    (lambda: certificate.certify(MDP, TARGET, cap=1e200), ValueError, "cap: expected"),
    (lambda: certificate.certify(MDP, TARGET, cap=10**400), ValueError, "cap: expected"),
    (lambda: certificate.sweep(MDP, TARGET, step=True), TypeError, "step: expected"),
    (lambda: certificate.sweep(None, TARGET), TypeError, "mdp: expected"),
    (lambda: certificate.certify_batch(None, [TARGET]), TypeError, "mdp: expected"),
    (lambda: teaching.ma2019(MDP, TARGET, 0.1, norm=True), ValueError, "norm: expected"),
    (lambda: teaching.ma2019(MDP, TARGET, 0.1, linear="yes"), TypeError, "linear: expected"),
    (lambda: bandits.orthonormal_eps(np.eye(2), [0.0, 0.0], 0, 1e200), ValueError, "cap: expected"),
    (lambda: sampled.ridge(np.eye(2), np.ones(2), -1.0), ValueError, "lam: expected"),
    (lambda: sampled.ridge(np.eye(2) * np.nan, np.ones(2), 1.0), ValueError, "X, Y: expected"),
])  # fmt: skip
def test_refused_by_name(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_bound_does_not_depend_on_the_scale_of_the_weights():
    rivals = (np.arange(3) != TARGET[:, :, None]) & MDP.support(TARGET)[:, :, None]
    bounds = [certificate.dual_bound(MDP, TARGET, np.where(rivals, size, 0.0), np.zeros(TARGET.shape)) for size in (1.0, 1e308)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)  # rounding
