"""Intervals against closed forms and against coverage by simulation."""

import numpy as np
import pytest

from paperbook.study.statistics import Estimate, bootstrap_interval, mean_band, mean_interval, paired_difference


def test_interval_of_three_numbers_by_hand():
    # mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302652730 from a printed table
    e = mean_interval([1.0, 2.0, 3.0])
    assert e.mean == 2.0 and e.n == 3
    assert e.high - 2.0 == pytest.approx(4.302652730 / np.sqrt(3), rel=1e-9)


def test_coverage_is_the_level():
    x = np.random.default_rng(0).normal(size=(5, 4000))
    _, low, high = mean_band(x)
    covered = ((low <= 0) & (high >= 0)).mean()
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)  # four standard errors of a proportion


def test_band_and_interval_agree():
    x = np.random.default_rng(1).normal(size=(7, 2))
    mean, low, high = mean_band(x)
    e = mean_interval(x[:, 1])
    assert (mean[1], low[1], high[1]) == pytest.approx((e.mean, e.low, e.high), rel=1e-12)


def test_pairing_removes_what_the_pairs_share():
    g = np.random.default_rng(2)
    shared = 100 * g.normal(size=6)
    a, b = shared + 1 + 0.01 * g.normal(size=6), shared
    assert paired_difference(a, b).excludes(0)
    assert not (mean_interval(a).low > mean_interval(b).high)


def test_one_value_says_nothing_of_its_spread():
    e = mean_interval([3.0])
    assert not e.excludes(-1e300) and e.n == 1


def test_bootstrap_of_a_mean_is_close_to_its_normal_interval():
    x = np.random.default_rng(3).normal(size=400)
    e = bootstrap_interval(x, lambda rows: float(rows.mean()), np.random.default_rng(4), draws=2000)
    t = mean_interval(x)
    # the percentile's own Monte-Carlo error at 2000 draws is about 4 % of the half width
    assert (e.low, e.high) == pytest.approx((t.low, t.high), abs=0.2 * (t.high - t.low))
    assert e.mean == x.mean()


def test_bootstrap_interval_is_the_middle_95_percent_of_its_draws():
    x = np.random.default_rng(5).normal(size=30)
    e = bootstrap_interval(x, lambda rows: float(rows.mean()), np.random.default_rng(6), draws=500)
    picks = np.random.default_rng(6).integers(30, size=(500, 30))
    drawn = np.sort(x[picks].mean(axis=1))
    # 2.5 % of 500 draws lie outside on each side
    assert drawn[11] <= e.low <= drawn[13] and drawn[486] <= e.high <= drawn[488]


def test_the_end_of_an_interval_is_not_excluded():
    e = Estimate(1.0, 0.5, 1.5, 5)
    assert not e.excludes(0.5) and not e.excludes(1.5) and e.excludes(0.499) and e.excludes(1.501)


def test_a_lower_level_gives_a_narrower_interval():
    a, b = [3.0, 1.0, 2.0], [1.0, 0.0, 0.5]
    half, most = paired_difference(a, b, level=0.5), paired_difference(a, b)
    assert half.high - half.low < most.high - most.low


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([]), "values: expected a non-empty"),
        (lambda: mean_interval([[1.0]]), "one-dimensional"),
        (lambda: mean_interval([1.0, np.nan]), "finite"),
        (lambda: mean_interval([1.0, 2.0], level=95), "level: .* got 95"),
        (lambda: paired_difference([1.0, 2.0], [1.0]), "b: expected 2 values"),
        (lambda: mean_band([1.0]), "at least 2 repetitions"),
        (lambda: bootstrap_interval(np.ones(1), np.mean, np.random.default_rng(0)), "at least 2 repetitions"),
        (lambda: bootstrap_interval(np.ones(3), np.mean, np.random.default_rng(0), draws=1), "draws"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_printed_form():
    assert str(Estimate(1.0, 0.5, 1.5, 5)) == "1 [0.5, 1.5]" and f"{Estimate(1.0, 0.5, 1.5, 5):.1f}" == "1.0 [0.5, 1.5]"
