"""Frozen black boxes of the full-scale study: CLIP and causal language models as (features, zero-shot logits).

Each backbone turns a batch of raw examples into the features g(x) that the residual head sees and the logits z_0(x) that
are f_0. Both load from a folder (a hub snapshot or a local one), so that a test's stand-in walks the same path as the
released weights; nothing here runs code that came with the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from paperbook.study.arguments import choice, integer

if TYPE_CHECKING:
    import torch

BACKBONES = ("clip", "causal-lm")
MAX_TOKENS = 512
"""Longest prompt in tokens: the text of a longer one is cut at its end, never the instruction around it."""

CONTENT_FREE = "N/A"
"""Text of the content-free prompt whose logits `calibrate` subtracts."""


class Encoded(NamedTuple):
    """One batch: `features` (batch, d) and `base_logits` (batch, classes), float32 on the CPU."""

    features: torch.Tensor
    base_logits: torch.Tensor


class Backbone(Protocol):
    """What the feature cache needs of a black box."""

    def cost(self, items: Sequence[Any]) -> list[int]:
        """Relative cost of each example; the cache batches examples of similar cost."""
        ...

    def encode(self, items: Sequence[Any]) -> Encoded:
        """Features and zero-shot logits of one batch of raw examples."""
        ...


def check_prompt(backbone: str, prompt: str) -> str:
    """`prompt` itself if it has the fields its backbone fills in.

    Raises:
        ValueError: naming the field that is missing.
    """
    choice("backbone", backbone, BACKBONES)
    for field in ("{class}",) if backbone == "clip" else ("{classes}", "{text}"):
        if field not in prompt:
            raise ValueError(f"prompt: expected a template with {field} for backbone={backbone!r}, got {prompt!r}")
    return prompt


def load_backbone(kind: str, folder: Path, classes: Sequence[str], prompt: str, *, calibrate: bool = False,
                  device: torch.device, dtype: torch.dtype) -> Backbone:
    """Load a frozen backbone from `folder` (configuration, tokenizer and safetensors weights).

    Args:
        kind: ``"clip"`` or ``"causal-lm"``.
        folder: what :func:`paperbook.papers.safe_residual.features.locate` returned.
        classes: class names in the order of the labels.
        prompt: template with ``{class}`` (CLIP) or ``{classes}`` and ``{text}`` (causal LM).
        calibrate: causal LM only: subtract the content-free prompt's logits.
        device, dtype: where and in which number format the backbone runs.

    Raises:
        ValueError: unknown kind, prompt without its fields, fewer than two classes, calibration asked of CLIP, or class
            names that share their first token.
        FileNotFoundError: when `folder` lacks a file that the backbone needs, naming the transformers error.
    """
    check_prompt(kind, prompt)
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ValueError(f"classes: expected at least two different names, got {list(classes)}")
    if kind == "clip":
        if calibrate:
            raise ValueError("calibrate: expected False for backbone='clip', got True")
        return ClipBackbone(folder, classes, prompt, device, dtype)
    return CausalLmBackbone(folder, classes, prompt, calibrate, device, dtype)


def clip_pixels(images: Sequence[np.ndarray], short_edge: int, crop: tuple[int, int], mean: Sequence[float],
                std: Sequence[float], device: torch.device | str = "cpu", scale: float = 1 / 255) -> torch.Tensor:
    """CLIP's preprocessing, batched on `device`: shortest edge to `short_edge`, centre crop, rescale, normalise.

    The bicubic, antialiased resize runs along the width, then along the height, and rounds to 8 bits after each, as PIL
    does; so it stays within one grey level of PIL (CLIP was trained on PIL's resize) without needing torchvision.

    Args:
        images: uint8 arrays of shape (height, width, 3), sizes may differ.
        short_edge: length of the shortest edge after resizing, in pixels.
        crop: (height, width) of the centre crop, in pixels, at most the resized image.
        mean, std: per channel, in units of rescaled intensity.
        device: where the work is done.
        scale: multiplies the 8-bit intensities.

    Returns:
        float32 tensor of shape (batch, 3, *crop).

    Raises:
        ValueError: when an image is not uint8 of shape (height, width, 3), or the crop does not fit.
    """
    import torch

    integer("short_edge", short_edge, 1)
    for i, image in enumerate(images):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise ValueError(f"images[{i}]: expected uint8 of shape (height, width, 3), got {image.dtype} {image.shape}")
    out = torch.empty(len(images), 3, *crop, device=device)
    sizes: dict[tuple[int, ...], list[int]] = {}
    for i, image in enumerate(images):
        sizes.setdefault(image.shape[:2], []).append(i)
    for (height, width), where in sizes.items():
        short, long = min(height, width), max(height, width)
        other = int(short_edge * long / short)
        new_h, new_w = (short_edge, other) if height <= width else (other, short_edge)
        if new_h < crop[0] or new_w < crop[1]:
            raise ValueError(f"crop: expected at most the resized image {(new_h, new_w)}, got {tuple(crop)}")
        pixels = torch.from_numpy(np.stack([images[i] for i in where])).to(device).permute(0, 3, 1, 2).float()
        for size in ((height, new_w), (new_h, new_w)):
            pixels = torch.nn.functional.interpolate(pixels, size=size, mode="bicubic", antialias=True, align_corners=False)
            pixels = pixels.round_().clamp_(0, 255)
        top, left = (new_h - crop[0]) // 2, (new_w - crop[1]) // 2
        out[where] = pixels[:, :, top:top + crop[0], left:left + crop[1]]
    centre = torch.tensor(mean, device=device).view(3, 1, 1)
    spread = torch.tensor(std, device=device).view(3, 1, 1)
    return (out * scale - centre) / spread


class ClipBackbone:
    """CLIP: g(x) = L2-normalised image embedding, z_0(x) = exp(logit_scale) * cosine(g(x), text prototype).

    The released models have exp(logit_scale) = 100, the temperature of the zero-shot classifier; it is read from the
    weights so that a stand-in keeps its own. One prompt a class, underscores in its name read as spaces.
    """

    def __init__(self, folder: Path, classes: Sequence[str], prompt: str, device: torch.device, dtype: torch.dtype) -> None:
        import torch
        from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

        model = _loaded(folder, lambda: CLIPModel.from_pretrained(folder, use_safetensors=True, dtype=torch.float32))
        # the PIL processor needs no torchvision; here it only parses preprocessor_config.json
        processor = _loaded(folder, lambda: CLIPImageProcessorPil.from_pretrained(folder))
        tokenizer = _loaded(folder, lambda: AutoTokenizer.from_pretrained(folder))
        self._model, self._device, self._dtype = model.to(device).eval(), device, dtype
        self._pixels = {
            "short_edge": processor.size["shortest_edge"],
            "crop": (processor.crop_size["height"], processor.crop_size["width"]),
            "mean": tuple(processor.image_mean),
            "std": tuple(processor.image_std),
            "scale": processor.rescale_factor,
        }
        texts = [prompt.replace("{class}", name.replace("_", " ")) for name in classes]
        tokens = tokenizer(texts, padding=True, truncation=True, return_tensors="pt",
                           max_length=model.config.text_config.max_position_embeddings).to(device)
        with torch.inference_mode(), _autocast(device, dtype):
            prototypes = self._model.get_text_features(**tokens).pooler_output
        self._prototypes = torch.nn.functional.normalize(prototypes.float(), dim=-1)
        self.temperature = float(model.logit_scale.detach().exp())

    def cost(self, items: Sequence[Any]) -> list[int]:
        """All images cost the same after resizing."""
        return [1] * len(items)

    def encode(self, items: Sequence[Any]) -> Encoded:
        """Embed a batch of PIL images (any mode, any size)."""
        import torch

        arrays = [np.asarray(image.convert("RGB")) for image in items]
        pixels = clip_pixels(arrays, device=self._device, **self._pixels)
        with torch.inference_mode(), _autocast(self._device, self._dtype):
            embedding = self._model.get_image_features(pixel_values=pixels).pooler_output
        features = torch.nn.functional.normalize(embedding.float(), dim=-1)
        return Encoded(features.cpu(), (self.temperature * features @ self._prototypes.T).cpu())


class CausalLmBackbone:
    """Causal LM: g(x) = final-layer state of the prompt's last token, z_0(x) = next-token logits of the class names.

    A class is represented by the first token of its name after a space. The logits are computed in float32 from the
    last state and those rows of the output matrix alone: no vocabulary-sized product, and no bfloat16 rounding of f_0
    (steps of 1/8 at a logit of 20, which would make ties).
    """

    def __init__(self, folder: Path, classes: Sequence[str], prompt: str, calibrate: bool, device: torch.device,
                 dtype: torch.dtype) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = _loaded(folder, lambda: AutoTokenizer.from_pretrained(folder))
        firsts = [self._tokenizer(" " + name, add_special_tokens=False)["input_ids"][0] for name in classes]
        if len(set(firsts)) != len(firsts):
            shared = dict(zip(classes, firsts, strict=True))
            raise ValueError(f"classes: expected names with different first tokens, got {shared}")
        model = _loaded(folder, lambda: AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype=dtype))
        model = model.to(device).eval().requires_grad_(False)
        self._body, self._device = model.base_model, device
        head = model.get_output_embeddings()
        self._rows = head.weight[firsts].float()
        self._bias = head.bias[firsts].float() if head.bias is not None else torch.zeros((), device=device)
        self._prompt = prompt.replace("{classes}", ", ".join(classes))
        self._shift = torch.zeros(len(classes), device=device)
        if calibrate:
            self._shift = self.encode([CONTENT_FREE]).base_logits[0].to(device)

    def tokens(self, text: str) -> list[int]:
        """Token ids of the prompt around `text`, at most ``MAX_TOKENS``: a longer text loses its end."""
        ids = self._tokenizer(self._prompt.replace("{text}", text))["input_ids"]
        excess = len(ids) - MAX_TOKENS
        if excess <= 0:
            return ids
        body = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        # cutting may merge tokens at the seam, so a retokenised prompt can be a little longer: cut until it fits
        while excess > 0 and body:
            body = body[:max(len(body) - excess, 0)]
            ids = self._tokenizer(self._prompt.replace("{text}", self._tokenizer.decode(body)))["input_ids"]
            excess = len(ids) - MAX_TOKENS
        if excess > 0:
            raise ValueError(f"prompt: expected at most {MAX_TOKENS} tokens without its text, got {len(ids)}")
        return ids

    def cost(self, items: Sequence[Any]) -> list[int]:
        """Characters, a stand-in for prompt length."""
        return [len(text) for text in items]

    def encode(self, items: Sequence[Any]) -> Encoded:
        """Read a batch of texts, padded on the left so that every prompt ends in the last column."""
        import torch

        prompts = [self.tokens(text) for text in items]
        width = max(len(ids) for ids in prompts)
        padded = torch.zeros(len(prompts), width, dtype=torch.long)  # masked where padded, so any id serves there
        mask = torch.zeros_like(padded)
        for row, ids in enumerate(prompts):
            padded[row, width - len(ids):] = torch.tensor(ids)
            mask[row, width - len(ids):] = 1
        padded, mask = padded.to(self._device), mask.to(self._device)
        # left padding shifts columns: positions count real tokens only, so that a prompt reads the same in every batch
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        with torch.inference_mode():
            states = self._body(input_ids=padded, attention_mask=mask, position_ids=positions,
                                use_cache=False).last_hidden_state
            last = states[:, -1].float()
            logits = last @ self._rows.T + self._bias - self._shift
        return Encoded(last.cpu(), logits.cpu())


def _autocast(device: torch.device, dtype: torch.dtype) -> Any:
    import torch

    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def _loaded(folder: Path, load: Any) -> Any:
    """What `load` returns, without progress bars; a missing or unreadable file becomes a FileNotFoundError in plain words."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return load()
    except OSError as error:
        raise FileNotFoundError(f"backbone_id: {folder.name} lacks a file of the model: {error}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
