"""The zero-initialised head: equal to the black box before training, its gradient path in closed form, the training loop."""

import copy

import numpy as np
import pytest
import torch

from paperbook.papers.safe_residual.heads import HeadData, ZeroInitHead, gd_path_closed_form, train_head


@pytest.fixture
def g():
    return torch.Generator().manual_seed(0)


def problem(g, n=120, p=5, k=3):
    features = torch.randn(n, p, generator=g)
    targets = torch.randint(k, (n,), generator=g)
    features[:, 0] += targets
    return HeadData(features, torch.randn(n, k, generator=g), targets)


# check 2
@pytest.mark.parametrize("hidden", [None, 16])
def test_before_training_it_is_the_black_box_bit_for_bit(g, hidden):
    data = problem(g)
    head = ZeroInitHead(5, 3, hidden, generator=g)
    assert torch.equal(head(data.features * 1e3, data.base_logits), data.base_logits)


# check 2
def test_the_first_step_moves_the_last_layer_only(g):
    data = problem(g)
    head = ZeroInitHead(5, 3, 16, generator=g)
    before = copy.deepcopy(head.state_dict())
    train_head(head, data, optimiser="gd", lr=0.1, weight_decay=0.0, steps=1)
    for name, values in head.state_dict().items():
        assert torch.equal(values, before[name]) == name.startswith("body"), name
    train_head(head, data, optimiser="gd", lr=0.1, weight_decay=0.0, steps=1)
    assert not torch.equal(head.state_dict()["body.0.weight"], before["body.0.weight"])


def test_no_gradient_reaches_the_base_logits(g):
    data = problem(g)
    base = data.base_logits.clone().requires_grad_()
    ZeroInitHead(5, 3)(data.features, base).sum().backward()
    assert base.grad is None


def test_the_body_comes_from_the_generator():
    one, two, other = (ZeroInitHead(5, 3, 8, generator=torch.Generator().manual_seed(s)).body[0].weight for s in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other) and one.abs().max() <= 5**-0.5


# check 16
@pytest.mark.parametrize("rank", [4, 2])
def test_gradient_path_in_closed_form(rank):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4))
    X[:, rank:] = X[:, :4 - rank]  # rank 2: two eigenvalues are 0
    y = rng.normal(size=(30, 2))
    W, path = np.zeros((4, 2)), [np.zeros((4, 2))]
    for _ in range(60):
        W = W - 0.3 * X.T @ (X @ W - y) / 30
        path.append(W)
    np.testing.assert_allclose(gd_path_closed_form(X, y, 0.3, np.arange(61)), path, atol=1e-10)
    np.testing.assert_allclose(gd_path_closed_form(X, y[:, 0], 0.3, 7), path[7][:, 0], atol=1e-10)


def test_limits_of_the_path():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    assert not gd_path_closed_form(X, y, 0.1, 0).any()
    np.testing.assert_allclose(gd_path_closed_form(X, y, 0.1, 10**5), np.linalg.lstsq(X, y)[0], atol=1e-10)
    # to first order in a small l t, t steps of lr are a ridge of penalty n/(lr t)
    ridge = np.linalg.solve(X.T @ X + 50 / (0.001 * 5) * np.eye(3), X.T @ y)
    np.testing.assert_allclose(gd_path_closed_form(X, y, 0.001, 5), ridge, rtol=0.01)


def test_a_path_beyond_floats_names_the_step_size():
    X, y = np.random.default_rng(0).normal(size=(30, 3)), np.ones(30)
    for lr, steps in ((10.0, 1000), (10.0, [1, 1000]), (1e308, 3)):
        with pytest.raises(ValueError, match="lr: expected a step size whose path stays finite"):
            gd_path_closed_form(X, y, lr, steps)
    assert np.isfinite(gd_path_closed_form(X, y, 10.0, 5)).all()  # divergent, but still numbers: the identity holds
    assert not gd_path_closed_form(np.zeros((3, 2)), np.ones(3), 10.0, 1000).any()


def test_the_training_loop_walks_the_closed_form_path(g):
    features = torch.randn(60, 4, generator=g, dtype=torch.float64)
    base, y = torch.randn(60, 2, generator=g, dtype=torch.float64), torch.randn(60, 2, generator=g, dtype=torch.float64)
    head = ZeroInitHead(4, 2)
    head.out.bias.requires_grad_(False)  # S8 has no intercept
    # mse is the mean over n k entries of the square: k/2 = 1 times the loss of S8, so the same step size
    data = HeadData(features, base, y)
    train_head(head, data, loss="mse", optimiser="gd", lr=0.2, weight_decay=0.0, steps=25, dtype=torch.float64)
    closed = gd_path_closed_form(features.numpy(), (y - base).numpy(), 0.2, 25)
    np.testing.assert_allclose(head.out.weight.detach().numpy().T, closed, atol=1e-10)


def test_step_zero_is_logged_and_equals_the_black_box(g):
    train, held = problem(g), problem(g)
    result = train_head(ZeroInitHead(5, 3, 8, generator=g), train, held, steps=50, lr=1e-2, check_every=20)
    assert result.steps == [0, 20, 40, 50]
    assert result.val_losses[0] == torch.nn.functional.cross_entropy(held.base_logits, held.targets).item()
    assert result.best_step == result.steps[int(np.argmin(result.val_losses))] > 0
    with torch.no_grad():
        best = torch.nn.functional.cross_entropy(result.head(held.features, held.base_logits), held.targets).item()
    assert best == min(result.val_losses)


def test_where_nothing_helps_step_zero_is_restored(g):
    train, held = problem(g), problem(g)
    held.base_logits = 30.0 * torch.nn.functional.one_hot(held.targets, 3).float()
    result = train_head(ZeroInitHead(5, 3), train, held, optimiser="gd", lr=1.0, steps=200, check_every=10, patience=3)
    assert result.best_step == 0 and result.stopped_early and result.steps == [0, 10, 20, 30]
    assert torch.equal(result.head(held.features, held.base_logits), held.base_logits)


def test_weight_decay_pulls_to_the_black_box(g):
    data = problem(g)
    sizes = [train_head(ZeroInitHead(5, 3), data, optimiser="adamw", lr=0.05, weight_decay=wd, steps=150).head.out.weight.norm()
             for wd in (0.0, 1.0, 10.0)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_without_validation_the_bare_loop_gives_the_same_weights(g):
    data = problem(g)
    bare = train_head(ZeroInitHead(5, 3), data, steps=30, lr=1e-2)
    logged = train_head(ZeroInitHead(5, 3), data, data, steps=30, lr=1e-2, check_every=10)
    assert bare.steps == [] and bare.best_step == logged.best_step == 30
    assert torch.equal(bare.head.out.weight, logged.head.out.weight)


def test_batches_repeat_from_the_generator_and_cover_an_epoch(g):
    data = problem(g)
    seeds = [torch.Generator().manual_seed(s) for s in (3, 3, 4)]
    runs = [train_head(ZeroInitHead(5, 3), data, steps=20, lr=1e-2, batch_size=32, generator=seed).head for seed in seeds]
    assert torch.equal(runs[0].out.weight, runs[1].out.weight) and not torch.equal(runs[0].out.weight, runs[2].out.weight)
    # one epoch of tiny steps from the same point sums to n/batch full-batch steps: each row is used once
    whole = train_head(ZeroInitHead(5, 3), data, optimiser="gd", lr=4e-4, weight_decay=0.0, steps=1, dtype=torch.float64).head
    parts = train_head(ZeroInitHead(5, 3), data, optimiser="gd", lr=1e-4, weight_decay=0.0, steps=4, batch_size=30,
                       generator=g, dtype=torch.float64).head
    torch.testing.assert_close(parts.out.weight, whole.out.weight, rtol=2e-3, atol=1e-8)  # second order in lr |X|^2 = 4e-4 * 6


def test_autocast_in_bfloat16_stays_close_and_starts_exactly(g):
    train, held = problem(g), problem(g)
    exact = train_head(ZeroInitHead(5, 3), train, held, steps=60, lr=1e-2)
    mixed = train_head(ZeroInitHead(5, 3), train, held, steps=60, lr=1e-2, autocast=True)
    assert mixed.val_losses[0] == exact.val_losses[0]
    assert abs(mixed.val_losses[-1] - exact.val_losses[-1]) < 0.02  # bfloat16 has 8 bits: 4e-3 relative, of a loss near 1


@pytest.mark.parametrize("change, error, message", [
    ({"loss": "hinge"}, ValueError, "loss: expected one of"),
    ({"optimiser": "lbfgs"}, ValueError, "optimiser: expected one of"),
    ({"lr": -1.0}, ValueError, "lr: expected"),
    ({"steps": 2.0}, TypeError, "steps: expected an integer"),
    ({"batch_size": 8}, ValueError, "generator: expected a torch.Generator where batch_size is given, got None"),
    ({"patience": 2}, ValueError, "patience: expected validation data"),
])
def test_bad_parameters(g, change, error, message):
    head = ZeroInitHead(5, 3)
    with pytest.raises(error, match=message):
        train_head(head, problem(g), **change)
    assert not head.out.weight.any()


def test_bad_data(g):
    data = problem(g)
    head = ZeroInitHead(5, 3)
    for field, value, message in [
        ("features", data.features[:, :4], r"train.features: expected shape \(n, 5\), got \(120, 4\)"),
        ("base_logits", data.base_logits[:9], r"train.base_logits: expected shape \(120, 3\), got \(9, 3\)"),
        ("features", data.features * float("nan"), "train.features: expected finite values"),
        ("targets", data.targets + 3, r"train.targets: expected class numbers in 0\.\.2"),
    ]:
        bad = copy.copy(data)
        setattr(bad, field, value)
        with pytest.raises(ValueError, match=message):
            train_head(head, bad)
    with pytest.raises(ValueError, match=r"base_logits: expected shape \(120, 3\), got \(120, 2\)"):
        head(data.features, data.base_logits[:, :2])
    with pytest.raises(ValueError, match="out_dim: expected an integer in"):
        ZeroInitHead(5, 0)
    for bad_call, message in [((np.ones((3, 2)), np.ones(4), 0.1, 1), r"y: expected shape \(3,\) or \(3, k\)"),
                              ((np.ones((3, 2)), np.ones(3), 0.0, 1), "lr: expected"),
                              ((np.ones((3, 2)), np.ones(3), 0.1, -1), "steps: expected whole numbers")]:
        with pytest.raises(ValueError, match=message):
            gd_path_closed_form(*bad_call)
