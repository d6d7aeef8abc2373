"""What `torch.autocast` makes of the tensors that backward reads: those of products are in 16 bits, all else as it was.

The price are copies. What lies in 32 bits is copied for every product that reads it, so that queries, keys and values
keep three copies of one input; and every matrix is copied too, since backward multiplies by it. These copies live from
a micro-batch's forward to its backward, so that four micro-batches under way have four copies of each matrix: also
where the ranks share the matrices themselves by ZeRO-3.
Measured, to the byte: tests/unit/module_11/test_module_11_counted.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import HALF, Saved, Sharing
from course_lib.costs.model.expert_activations import WEIGHED
from course_lib.costs.model.parameters import Weight, layer_weights

_EXACT = (
    *("log-sum-exp of scores", "tokens", "positions", "targets", "log-probabilities", WEIGHED),
    *("router: choices", "router: share of each expert", "router: order of rows"),
)
_HEAD = "head"


def under_autocast(kept: Iterable[Saved], config: ModelConfig) -> tuple[Saved, ...]:
    """A layer's tensors, all of whose matrices are trained, with the copies of these."""
    matrices = [weight for weight in layer_weights(config) if len(weight.shape) == 2]
    return (*shortened(kept, readers(config)), *map(_copy_of, matrices))


def head_under_autocast(kept: Iterable[Saved], config: ModelConfig) -> tuple[Saved, ...]:
    """The same of what embedding, last norm, head and loss keep; only the head is a product."""
    numbers = config.vocab_size * config.hidden_size
    copy = Saved(name=_copied(_HEAD), elements=numbers, itemsize=HALF, shared_by="tp")
    return (*shortened(kept, {}), copy)


def shortened(kept: Iterable[Saved], read_by: Mapping[str, int]) -> Iterator[Saved]:
    """Every tensor as the products leave it; `read_by` says how many of them copy what lies in 32 bits."""
    for saved in kept:
        if saved.name in _EXACT or "norm" in saved.name.partition(":")[0]:
            yield saved
        else:
            yield replace(saved, elements=saved.elements * read_by.get(saved.name, 1), itemsize=HALF)


def readers(config: ModelConfig) -> dict[str, int]:
    """How many maps read the input of each block, which a norm has made in 32 bits."""
    attention = 1 if "qkv" in config.joined else 3 if config.latent is None else 2
    block = 2 if config.gated_ffn and "gate_up" not in config.joined else 1
    if config.n_experts == 1:
        return {"attention input": attention, "ffn input": block}
    beside = block if config.shared_ffn_size else 0  # the block that all tokens pass
    return {"attention input": attention, "ffn input": 1 + beside, "expert input": block}  # the router's is one


def _copy_of(weight: Weight) -> Saved:
    """A matrix in 16 bits, of all that are alike."""
    shared: Sharing = "nothing" if weight.split is None else "tp"
    name, numbers = _copied(weight.name), weight.parameters
    return Saved(name=name, elements=numbers, itemsize=HALF, shared_by=shared, heads=weight.heads)


def _copied(name: str) -> str:
    return f"{name} in 16 bits"
