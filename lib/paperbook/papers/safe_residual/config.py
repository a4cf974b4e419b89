"""Parameters of the chapter's pages, one class a page; the page on classifiers has its own module (`config_classifiers`)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from paperbook.study.params import Config
from paperbook.study.requirements import Needs, Work

Radii = Annotated[list[Annotated[float, Field(ge=0.0)]], Field(min_length=2)]
Sizes = Annotated[list[Annotated[int, Field(ge=16, le=10**8)]], Field(min_length=2)]

MEMORY = 64e9
"""Bytes a page may ask for; a size that needs more is refused before any work."""
KERNEL_ROWS = 20_000
"""Most rows of the kernel learner: its matrix takes n^2 * 8 bytes (3.2 GB here), its eigenvectors and workspace three times as
much again."""


def _increasing(values: list[float]) -> list[float]:
    if any(later <= earlier for earlier, later in pairwise(values)):
        raise ValueError("expected increasing values without repetition")
    return values


def _fits_kernel(values: list[int]) -> list[int]:
    largest = max(values)
    if largest > KERNEL_ROWS:
        need = largest**2 * 8 / 1e9
        raise ValueError(f"expected at most {KERNEL_ROWS} rows, since the kernel matrix of {largest} alone takes {need:.3g} GB")
    return values


def _kernel_gb(rows: int) -> float:
    return 0.3 + 4 * rows**2 * 8 / 1e9


def _kernel_work(rows: int) -> float:
    """Relative work of one fit: as much again as its fixed price at about 200 rows, cubic from there."""
    return 1.0 + (rows / 200) ** 3


class PageConfig(Config):
    """Base of the pages' parameters: numbers are finite (-p sigma 1e400 arrives as infinity)."""

    model_config = ConfigDict(allow_inf_nan=False)


class TrustConfig(PageConfig):
    """Trust or learn (smoothness 1, one dimension): the problem, the radii, and how often data are simulated."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("n",)

    # 200 data sets at once in the check of the upper bound: 8 GB an array at the most rows
    n: int = Field(2000, ge=16, le=5 * 10**6, description="labelled rows")
    n_grid: Sizes = Field([500, 2000, 8000], description="sizes for which the lower bound is drawn")
    delta_grid: Radii = Field([0.003, 0.1, 1.0], description="radii ||f* - f_0||, increasing")
    sigma: float = Field(0.5, gt=0, description="standard deviation of the noise")
    smoothness_constant: float = Field(4.0, gt=0, description="Hölder constant L of the residual class")
    val_fraction: float = Field(0.5, gt=0, lt=1, description="share of the rows kept for selection (rho)")
    tau: float = Field(0.0, ge=0, description="adopt only if the gain exceeds tau standard errors")
    reps: int = Field(300, ge=2, le=10**7, description="simulated data sets")

    _sorted = field_validator("n_grid", "delta_grid")(_increasing)

    def needs(self) -> Needs:
        """The check of the upper bound holds 200 data sets at once, a few arrays of them."""
        return Needs(memory_gb=0.4 + 4 * 200 * self.n * 8 / 1e9)

    def work(self) -> Work:
        """Simulation is linear in the rows drawn."""
        return Work("simulation", float(self.reps * (self.n * len(self.delta_grid) + sum(self.n_grid))))


class CrossingConfig(PageConfig):
    """Where is delta_c: sizes, repetitions and the device that simulates."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("batch_rows",)

    n_grid: Sizes = Field([512, 2048, 8192], description="total rows of each study, half of them train, increasing")
    n_routes: int = Field(2000, ge=16, le=10**8, description="total rows at which the three routes are compared")
    sigma: float = Field(0.5, gt=0, description="standard deviation of the noise")
    smoothness_constant: float = Field(4.0, gt=0, description="Hölder constant L of the residual class")
    reps: int = Field(60, ge=2, le=10**7, description="simulated data sets for each size and class")
    draws: int = Field(200, ge=2, description="bootstrap resamples behind each interval")
    device: str = Field("numpy", description="numpy, or a torch device: auto, cpu, cuda, cuda:<i>")
    batch_rows: int = Field(2**19, ge=1, le=2**29, description="rows simulated at a time; sets the peak memory")

    _sorted = field_validator("n_grid")(_increasing)

    @field_validator("n_grid")
    @classmethod
    def _different_halves(cls, values: list[int]) -> list[int]:
        # half of the rows train; the page halves downwards, crossing_study to the nearest
        for halves in ([n // 2 for n in values], [round(0.5 * n) for n in values]):
            if len(set(halves)) < len(halves):
                raise ValueError(f"expected sizes whose halves, the training rows, differ; they are {halves}")
        return values

    def needs(self) -> Needs:
        """A batch is held as inputs, targets, cells and products in double precision: up to 15 arrays of its rows in 2-d."""
        # of the constant, a quarter is quadrature in 2-d, which does not grow with the rows
        batch = 15 * 8 * max(self.batch_rows, max(self.n_grid) // 2) / 1e9  # a data set is never split
        gpu = None if self.device in ("numpy", "cpu") else 0.5 + batch
        return Needs(memory_gb=1.0 + (0.0 if self.device.startswith("cuda") else batch), gpu_gb=gpu)

    def work(self) -> Work:
        """The fit is linear in rows (:func:`piecewise_risks`); five studies of each size."""
        return Work(f"crossings on {self.device}", float(self.reps * sum(self.n_grid)))


class SafetyConfig(PageConfig):
    """The price of safety: the problem, the grid of radii, the margins and the splits that are swept."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("n",)

    n: int = Field(2000, ge=16, le=10**8, description="labelled rows")
    delta_grid: Radii = Field([0.0, 0.1, 0.4], description="radii ||f* - f_0||, increasing")
    sigma: float = Field(0.5, gt=0, description="standard deviation of the noise")
    val_fraction: float = Field(0.5, gt=0, lt=1, description="share of the rows kept for selection (rho)")
    tau: float = Field(0.0, ge=0, description="adopt only if the gain exceeds tau standard errors")
    tau_grid: Radii = Field([0.0, 1.0, 2.0], description="margins to compare, increasing")
    rho_grid: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=2)] = Field(
        [0.2, 0.5], description="split fractions to compare, increasing"
    )
    sup_bound: float = Field(1.0, gt=0, description="B: bound on the size of residual and estimate, fixed beforehand")
    eta: float = Field(0.05, gt=0, lt=1, description="probability with which the oracle inequality may fail")
    reps: int = Field(300, ge=2, le=10**7, description="simulated data sets")
    cost_draws: int = Field(4000, ge=100, le=10**8, description="simulated validation sets for the selection cost")

    _sorted = field_validator("delta_grid", "tau_grid", "rho_grid")(_increasing)

    @model_validator(mode="after")
    def _fits_memory(self) -> SafetyConfig:
        # up to 500 validation sets at once, five arrays of them
        need = 5 * 8 * min(500, self.cost_draws) * self.val_fraction * self.n
        if need > MEMORY:
            raise ValueError(f"n: expected validation sets within {MEMORY / 1e9:.0f} GB of memory, got n={self.n}, "
                             f"val_fraction={self.val_fraction}, cost_draws={self.cost_draws}, which take {need / 1e9:.0f} GB")
        return self

    def needs(self) -> Needs:
        """Five arrays of up to 500 validation sets at once."""
        return Needs(memory_gb=0.4 + 5 * 8 * min(500, self.cost_draws) * self.val_fraction * self.n / 1e9)

    def work(self) -> Work:
        """Linear in simulated rows: data sets for each radius, validation sets for the selection cost."""
        grid = len(self.delta_grid) * (1 + len(self.tau_grid) + len(self.rho_grid))
        return Work("simulation", self.n * (self.reps * grid + self.val_fraction * self.cost_draws))


class OverviewConfig(PageConfig):
    """The chapter in one figure: one simulated problem and the radii at which it is looked at."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("n",)

    n: int = Field(2000, ge=16, le=10**8, description="labelled rows")
    delta_grid: Radii = Field([0.0, 0.03, 0.1, 0.4], description="radii ||f* - f_0||, increasing")
    sigma: float = Field(0.5, gt=0, description="standard deviation of the noise")
    val_fraction: float = Field(0.5, gt=0, lt=1, description="share of the rows kept for selection (rho)")
    tau: float = Field(0.0, ge=0, description="adopt only if the gain exceeds tau standard errors")
    reps: int = Field(400, ge=2, le=10**7, description="simulated data sets")

    _sorted = field_validator("delta_grid")(_increasing)

    def needs(self) -> Needs:
        """Data sets are simulated half a million rows at a time, ten to twelve arrays of them; one data set if that is more."""
        return Needs(memory_gb=0.4 + 12 * 8 * max(2**19, self.n) / 1e9)

    def work(self) -> Work:
        """Linear in simulated rows."""
        return Work("simulation", float(self.reps * self.n * len(self.delta_grid)))


class EstimatorConfig(PageConfig):
    """The estimator and the simulated tables: sizes, radii and dimensions of the cells, draws behind each."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("n_grid",)

    n_grid: Annotated[list[Annotated[int, Field(ge=16)]], Field(min_length=1)] = Field(
        [100, 400], description="labelled rows, increasing"
    )
    delta_grid: Radii = Field([0.0, 0.1, 0.3, 1.0], description="radii ||f* - f_0||, increasing")
    dim_grid: Annotated[list[Annotated[int, Field(ge=1, le=10_000)]], Field(min_length=1)] = Field(
        [1, 10], description="dimensions of the inputs, one table each"
    )
    sigma: float = Field(0.5, gt=0, description="standard deviation of the noise")
    val_fraction: float = Field(0.3, gt=0, lt=1, description="share of the rows kept for selection (rho)")
    tau: float = Field(0.0, ge=0, description="adopt only if the gain exceeds tau standard errors")
    selection: Literal["holdout", "path"] = Field("holdout", description="what chooses the penalty of the learner")
    reps: int = Field(4, ge=2, le=10**7, description="simulated data sets behind each cell of a table")

    _sorted = field_validator("n_grid", "delta_grid", "dim_grid")(_increasing)
    _small = field_validator("n_grid")(_fits_kernel)

    def needs(self) -> Needs:
        """The kernel matrix, its eigenvectors and workspace."""
        return Needs(memory_gb=_kernel_gb(max(self.n_grid)))

    def work(self) -> Work:
        """One eigendecomposition a fit: cubic in the rows, with a price for each fit that does not depend on them."""
        fits = self.reps * len(self.delta_grid) * len(self.dim_grid)
        return Work("kernel ridge", fits * sum(_kernel_work(n) for n in self.n_grid))


class TablesConfig(PageConfig):
    """Diamonds: how many labelled stones, how many splits, and how the correction is selected."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("n_grid",)

    n_grid: Annotated[list[Annotated[int, Field(ge=10)]], Field(min_length=1)] = Field(
        [20, 50, 150], description="labelled stones, increasing; 50 must be among them"
    )
    n_box: int = Field(3000, ge=50, description="stones the black box is trained on")
    n_test: int = Field(6000, ge=100, description="test stones")
    splits: int = Field(2, ge=1, description="random splits of the table averaged in one run")
    val_fraction: float = Field(0.3, gt=0, lt=1, description="share of the labelled stones kept for selection (rho)")
    tau: float = Field(0.0, ge=0, description="adopt only if the gain exceeds tau standard errors")
    selection: Literal["holdout", "path"] = Field("holdout", description="what chooses the penalty of the learner")

    _sorted = field_validator("n_grid")(_increasing)
    _small = field_validator("n_grid")(_fits_kernel)

    @field_validator("n_grid")
    @classmethod
    def _has_fifty(cls, values: list[int]) -> list[int]:
        if 50 not in values:
            raise ValueError("expected 50 among the sizes, at which three claims are judged")
        return values

    def needs(self) -> Needs:
        """The kernel matrix, its eigenvectors and workspace, and the table."""
        return Needs(memory_gb=0.5 + _kernel_gb(max(self.n_grid)))

    def work(self) -> Work:
        """Both black boxes once a split (boosting, linear in their rows), then one eigendecomposition a fit."""
        return Work("diamonds", self.splits * (self.n_box / 1000 + sum(_kernel_work(n) for n in self.n_grid)))
