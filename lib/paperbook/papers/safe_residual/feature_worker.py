"""One of several processes that fill a feature cache; each takes every k-th missing shard. ``cache_features`` starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paperbook.papers.safe_residual.features import FeatureSpec, encode_shards
from paperbook.study.parallel import main_of


def work(request: dict[str, Any]) -> None:
    """Encode this process's share of the shards that start at ``request["starts"]``."""
    from accelerate import PartialState

    state = PartialState(cpu=request["cpu"])
    mine = request["starts"][state.process_index :: state.num_processes]
    encode_shards(FeatureSpec(**request["spec"]), Path(request["place"]), mine, device=state.device,
                  batch_size=request["batch_size"], shard_size=request["shard_size"])  # fmt: skip
    state.wait_for_everyone()
    state.destroy_process_group()


if __name__ == "__main__":
    main_of(work)
