"""Parameters of the page on classifiers: digits at smoke and reader scale, a frozen backbone on real data at full."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from paperbook.papers.safe_residual.backbones import check_prompt
from paperbook.study.params import Config
from paperbook.study.requirements import Asset, Needs, Work

DEFAULT_PROMPTS = {
    "clip": "a photo of a {class}.",
    "causal-lm": "Classify the news article into one of these topics: {classes}.\n\nArticle: {text}\n\nTopic:",
}
"""What an empty `prompt` stands for, by backbone."""

_PAIRS = {"digits": "pixels", "cifar100": "clip", "ag_news": "causal-lm"}


class ClassifierConfig(Config):
    """Which black box, which data, how many labels, and how the correction is fitted and selected."""

    model_config = ConfigDict(allow_inf_nan=False)
    memory_parameters: ClassVar[tuple[str, ...]] = ("batch_size", "head_batch_size")
    speed_parameters: ClassVar[tuple[str, ...]] = ("processes",)

    dataset: Literal["digits", "cifar100", "ag_news"] = Field("digits", description="data set; names its columns")
    backbone: Literal["pixels", "clip", "causal-lm"] = Field("pixels", description="what computes features and f_0's logits")
    dataset_id: str = Field("", description="hub id of the data set, or a local folder of parquet files (unused for digits)")
    dataset_revision: str = Field("", description="commit hash, tag or branch of the data set; unused for a local folder")
    backbone_id: str = Field("", description="hub id of the weights, or a local folder (unused for pixels)")
    backbone_revision: str = Field("", description="commit hash, tag or branch of the weights; unused for a local folder")
    prompt: str = Field("", description="template: {class} for clip; {classes} and {text} for causal-lm; empty = the default")
    calibrate: bool = Field(False, description="causal-lm: subtract the logits of the content-free prompt (text 'N/A')")
    n_grid: list[Annotated[int, Field(ge=8)]] = Field(
        [20, 50, 100, 300, 700], min_length=1, description="numbers of labelled examples, increasing"
    )
    val_fraction: float = Field(0.3, gt=0, lt=1, description="share of the labelled examples kept for selection (rho)")
    tau: float = Field(0.0, ge=0, description="adopt only if the gain exceeds tau standard errors")
    selection: Literal["accuracy", "nll"] = Field("accuracy", description="validation loss that selects; ties keep f_0")
    epochs: int = Field(100, ge=1, description="passes over the training part (unused for digits: full-batch heads)")
    lr: float = Field(0.001, gt=0, description="learning rate of AdamW on the head (unused for digits)")
    weight_decay: float = Field(0.01, ge=0, description="weight decay of the head, which pulls towards f_0 (unused for digits)")
    patience: int = Field(10, ge=1, description="stop a head after this many epochs without a better one (unused for digits)")
    head_batch_size: int = Field(256, ge=1, description="examples a step of the head (unused for digits)")
    batch_size: int = Field(256, ge=1, description="examples a forward pass of the frozen backbone (unused for digits)")
    device: str = Field("cpu", description="auto, cpu, cuda or cuda:<i>")
    dtype: str = Field("auto", description="number format of the backbone: auto, float32, bfloat16 or float16")
    shard_size: int = Field(2048, ge=1, description="examples in one file of the feature cache")
    processes: int = Field(1, ge=1, description="processes that encode features, on CUDA one a GPU (unused for digits)")
    cache_dir: str = Field("", description="folder of the feature cache; empty = the book's own")
    max_train: int = Field(0, ge=0, description="size of the pool that labelled examples are drawn from; 0 = all")
    max_test: int = Field(0, ge=0, description="number of test examples; 0 = all")

    @model_validator(mode="after")
    def _fits_together(self) -> ClassifierConfig:
        if self.backbone != _PAIRS[self.dataset]:
            raise ValueError(f"backbone: dataset={self.dataset!r} expects {_PAIRS[self.dataset]!r}, got {self.backbone!r}")
        if self.n_grid != sorted(set(self.n_grid)):
            raise ValueError(f"n_grid: expected increasing numbers without repetition, got {self.n_grid}")
        if self.max_train and self.max_train < self.n_grid[-1]:
            raise ValueError(f"max_train: expected 0 or at least max(n_grid) = {self.n_grid[-1]}, got {self.max_train}")
        if self.dataset != "digits":
            for name in ("dataset_id", "backbone_id"):
                if not getattr(self, name):
                    raise ValueError(f"{name}: dataset={self.dataset!r} expects a hub id or a local folder, got an empty text")
            if self.prompt:
                check_prompt(self.backbone, self.prompt)
        if self.calibrate and self.backbone != "causal-lm":
            raise ValueError(f"calibrate: expected false for backbone={self.backbone!r}, which has no empty prompt, got true")
        return self

    def assets(self) -> list[Asset]:
        """Weights and data of the frozen backbone, neither of which is needed once its features are cached; none for digits."""
        if self.dataset == "digits":
            return []
        from paperbook.papers.safe_residual.features import fetch_command, is_cached, is_local, on_this_machine
        from paperbook.papers.safe_residual.zero_shot import feature_cache, feature_specs

        if all(is_cached(spec, feature_cache(self)) for spec in feature_specs(self).values()):
            return []
        found = []
        for kind, name, revision in (("model", self.backbone_id, self.backbone_revision),
                                     ("dataset", self.dataset_id, self.dataset_revision)):  # fmt: skip
            files = "config.json and *.safetensors" if kind == "model" else "*.parquet"
            field = "backbone" if kind == "model" else "dataset"
            if is_local(name):
                label, fetch = name, f"{field}_id must be a hub id or a folder with {files}"
            elif not revision:
                label, fetch = name, f"{field}_revision must be a commit hash"
            else:
                label, fetch = f"{name} at {revision}", fetch_command(kind, name, revision)
            found.append(Asset(label, on_this_machine(kind, name, revision), fetch))
        return found

    def needs(self) -> Needs:
        """Estimates: weights in the number format of the backbone, its activations, and the features of both splits."""
        if self.dataset == "digits":
            return Needs(memory_gb=0.5)
        # dtype auto is float32 on the CPU and bfloat16 on a GPU, like backbones' pick_dtype
        size = 4 if self.dtype == "float32" or (self.dtype == "auto" and self.device == "cpu") else 2
        # parameters of the two released backbones
        weights = {"clip": 1.5e8, "causal-lm": 8.2e9}[self.backbone] * size / 1e9
        # numbers of an example that live at once in inference: ViT-B/32 has 50 tokens of 12 x 768 (input, attention and
        # feed-forward) and the 3 x 224 x 224 image; Qwen3-8B at most 512 tokens of 3 x 12288 (feed-forward) and 4 x 4096
        numbers = {"clip": 50 * 12 * 768 + 3 * 224**2, "causal-lm": 512 * (3 * 12288 + 4 * 4096)}[self.backbone]
        batch = self.batch_size * numbers * size / 1e9
        # features are stored in half precision from a backbone in half precision; in memory they are float32
        width = {"clip": 512, "causal-lm": 4096}[self.backbone]
        stored, held = (self._rows() * width * number / 1e9 for number in (size, 4))
        cpu = self.device == "cpu"
        # every process holds the weights (on the way to its GPU) and torch; the study holds features, their scaled copy and the
        # rows that a head trains on
        memory = self.processes * (1 + weights + (batch if cpu else 0.0)) + 3 * held
        return Needs(memory_gb=1 + memory, gpu_gb=None if cpu else 0.5 + weights + batch, disk_gb=stored + 0.1)

    def work(self) -> Work:
        """Digits: full-batch heads cost their rows; a frozen backbone: its forward passes, the heads' epochs are small beside."""
        if self.dataset == "digits":
            return Work("digits", float(sum(self.n_grid)))
        return Work(f"{self.backbone} on {self.device}", self._rows() + 0.01 * self.epochs * sum(self.n_grid))

    def _rows(self) -> int:
        """Rows of both splits that are encoded; the data sets' own sizes where no limit is set."""
        train, test = {"cifar100": (50_000, 10_000), "ag_news": (120_000, 7_600)}[self.dataset]
        return min(self.max_train or train, train) + min(self.max_test or test, test)
