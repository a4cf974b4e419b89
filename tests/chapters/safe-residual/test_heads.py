"""The zero-initialised head: equal to the black box before training, its gradient path in closed form, the training loop."""

import copy

import numpy as np
import pytest
import torch
from safetensors import safe_open

from paperbook.papers.safe_residual.heads import HeadData, ZeroInitHead, gd_path_closed_form, train_head
from paperbook.study.checkpoints import Checkpoints, TrainingDiverged


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


# --- checkpoints --------------------------------------------------------------------------------------------------------


OPTIONS = {
    "validation, batches": {"batch_size": 32, "lr": 3e-2, "steps": 23, "check_every": 5},
    "validation, patience": {"batch_size": 32, "lr": 0.2, "steps": 200, "check_every": 4, "patience": 3},
    "validation, full batch": {"lr": 3e-2, "steps": 23, "check_every": 5, "optimiser": "gd"},
    "bare, batches": {"batch_size": 50, "lr": 3e-2, "steps": 23, "check_every": 5},
}


def kept(folder, **options):
    return Checkpoints(folder, {"config": "a", "seed": "0", "code": "b"}, **{"every_seconds": 0, **options})


def trained(name, checkpoints=None, **changes):
    """One training of `OPTIONS`, from its start every time: the same head, data and stream."""
    g = torch.Generator().manual_seed(7)
    train, held = problem(g), problem(g)
    head, batches = ZeroInitHead(5, 3, 8, generator=g), torch.Generator().manual_seed(8)
    options = {**OPTIONS[name], **changes}
    held = None if name.startswith("bare") else held
    found = train_head(head, train, held, generator=batches, checkpoints=checkpoints, **options)
    return found, batches.get_state()


def assert_same(one, two):
    (a, stream), (b, other) = one, two
    assert (a.best_step, a.steps, a.val_losses, a.stopped_early) == (b.best_step, b.steps, b.val_losses, b.stopped_early)
    for key, value in a.head.state_dict().items():
        assert torch.equal(value, b.head.state_dict()[key]), key
    assert torch.equal(stream, other), "the stream of batches"


class Killed(BaseException):
    """Stands for the end of the process; nothing of the library catches it."""


@pytest.fixture
def kill_at(monkeypatch):
    """Ends a training when it is about to take its `step`-th update."""

    def arm(step):
        taken = 0

        def update(real):
            def call(self, *args, **kwargs):
                nonlocal taken
                taken += 1
                if taken == step:
                    raise Killed
                return real(self, *args, **kwargs)

            return call

        for kind in (torch.optim.AdamW, torch.optim.SGD):
            monkeypatch.setattr(kind, "step", update(kind.step))

    yield arm
    monkeypatch.undo()


@pytest.mark.parametrize("name", list(OPTIONS))
def test_checkpoints_change_no_bit(name, tmp_path):
    assert_same(trained(name), trained(name, kept(tmp_path)))
    assert_same(trained(name), trained(name, kept(tmp_path / "never due", every_seconds=1e6)))
    assert len(list((tmp_path / "never due").glob("step-*"))) == 1, "the end is saved whether or not it is due"


@pytest.mark.parametrize("name", list(OPTIONS))
@pytest.mark.parametrize("step", [2, 7, 8, 18])
def test_a_killed_head_resumes_to_the_same_bits(name, step, tmp_path, kill_at, monkeypatch):
    whole = trained(name)
    kill_at(step)
    with pytest.raises(Killed):
        trained(name, kept(tmp_path))
    monkeypatch.undo()
    every = OPTIONS[name]["check_every"]
    start = (step - 1) // every * every
    assert kept(tmp_path).steps()[-1:] == ([start] if start else []), "it was saved at the last check before the kill"
    again = kept(tmp_path)
    assert_same(trained(name, again), whole)
    assert again.steps()[-1] == (whole[0].steps[-1] if whole[0].steps else 23)


def test_patience_that_ran_out_is_what_these_options_show():
    found, _ = trained("validation, patience")
    assert found.stopped_early and 0 < found.best_step < found.steps[-1] < 200 and found.steps[-1] == 20


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_head_killed_after_every_save_ends_with_the_same_bits(name, tmp_path, monkeypatch):
    saves, original = [], Checkpoints.save

    def save_and_die(self, step, **parts):
        original(self, step, **parts)
        saves.append(step)
        raise Killed

    whole = trained(name)
    monkeypatch.setattr(Checkpoints, "save", save_and_die)
    found = None
    while found is None:
        checkpoints = kept(tmp_path)
        try:
            found = trained(name, checkpoints)
        except Killed:
            checkpoints.release()
    every = OPTIONS[name]["check_every"]
    end = whole[0].steps[-1] if whole[0].steps else 23
    assert saves == [*range(every, end, every), end], "each attempt goes on from the last save, and nothing is done twice"
    assert_same(found, whole)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_finished_head_is_not_trained_again(name, tmp_path, kill_at):
    whole = trained(name, kept(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.glob("step-*")}
    kill_at(1)
    assert_same(trained(name, kept(tmp_path)), whole)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("step-*")} == before


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("every_seconds", [0, 1e6])
def test_a_loss_that_leaves_the_numbers_stops_the_training(held, every_seconds, tmp_path):
    g = torch.Generator().manual_seed(0)
    features, y = torch.randn(60, 4, generator=g), torch.randn(60, 2, generator=g)
    data = HeadData(features, torch.zeros(60, 2), y)

    def run(checkpoints=None):
        # each step multiplies the error by about 1e4, float32 ends at 3e38: the square leaves it within a handful of steps
        return train_head(ZeroInitHead(4, 2), data, data if held else None, loss="mse", optimiser="gd", lr=1e4, weight_decay=0.0,
                          steps=40, check_every=1, checkpoints=checkpoints)

    with pytest.raises(TrainingDiverged, match="loss: expected a finite number, got (inf|nan) at step"):
        run()
    checkpoints = kept(tmp_path, every_seconds=every_seconds).child("residual-n60")
    with pytest.raises(TrainingDiverged, match=r"lower lr \(now 10000\)") as caught:
        run(checkpoints)
    if every_seconds:
        assert caught.value.checkpoint is None and not list(tmp_path.rglob("step-*"))
        assert caught.value.step < 10 if held else caught.value.step == 40, "without checks nobody looks before the end"
        return
    assert caught.value.checkpoint == caught.value.step - 1 > 0 and "loss of residual-n60: expected" in str(caught.value)
    # what is kept is good: going on from it, the loss of the state itself is still a number
    head = ZeroInitHead(4, 2)
    update = torch.optim.SGD([{"params": [head.out.weight]}, {"params": [head.out.bias]}], lr=1e4)
    found = checkpoints.resume(head=head, optimiser=update)
    assert found.step == caught.value.checkpoint
    with torch.no_grad():
        assert torch.isfinite(torch.nn.functional.mse_loss(head(features, torch.zeros(60, 2)), y))


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("optimiser, loss", [("gd", "mse"), ("adamw", "mse"), ("adamw", "cross_entropy")])
def test_no_checkpoint_holds_what_is_no_number(optimiser, loss, held, tmp_path):
    """A rate beyond all reason: every step is a check and a save, so the last good state is the only one that may be kept."""
    g = torch.Generator().manual_seed(0)
    data = problem(g)
    if loss == "mse":
        data.targets = torch.randn(120, 3, generator=g)
    with pytest.raises(TrainingDiverged, match=r"lower lr \(now 1e\+30\)") as caught:
        train_head(ZeroInitHead(5, 3), data, data if held else None, loss=loss, optimiser=optimiser, lr=1e30, steps=40,
                   check_every=1, checkpoints=kept(tmp_path))
    steps = kept(tmp_path).steps()
    assert caught.value.step <= 5 and not np.isfinite(caught.value.loss)
    assert caught.value.checkpoint == (caught.value.step - 1 or None) == (steps[-1] if steps else None)
    for file in tmp_path.glob("step-*.safetensors"):
        with safe_open(file, framework="pt") as stored:
            names = [name for name in stored.keys() if "optimiser" not in name]  # noqa: SIM118 - the file is no mapping
            assert any("head" in name for name in names)
            assert all(stored.get_tensor(name).isfinite().all() for name in names), file.name
            assert '{\"f\":' not in stored.metadata()["tree"], "that is how nan and inf are written"
