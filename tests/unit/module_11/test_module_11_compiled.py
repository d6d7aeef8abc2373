"""What lesson 11 says of a compiler's memory budget, against PyTorch as it stands: bytes kept, peaks, gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._functorch import config as compiler
from torch.nn import functional

from course_lib.config import ModelConfig
from course_lib.gauges import peak_bytes, saved_bytes
from course_lib.savers import checkpoint_layers
from course_lib.training import Decoder

CONFIG = ModelConfig(  # the lesson's own nine layers
    name="deep",
    hidden_size=64,
    n_layers=9,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=176,
    vocab_size=256,
    tied=False,
)
# PyTorch's compiler warns of its own way of asking tensors for gradients, and of its own old parts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
INPUTS, TARGETS = torch.randint(256, (2, 4, 64), generator=torch.Generator().manual_seed(0))


def loss_on(model):
    return functional.cross_entropy(model(INPUTS).flatten(0, 1), TARGETS.flatten())


def train_step(model):
    loss_on(model).backward()
    model.zero_grad()


def fresh():
    torch.manual_seed(0)
    return Decoder(CONFIG)


def measured_of(model):
    """Bytes kept for backward, the highest moment, and the gradients."""
    train_step(model)
    return saved_bytes(model, partial(loss_on, model)), peak_bytes(partial(train_step, model)), gradients(model)


def compiled(budget: float, parts_of):
    torch.compiler.reset()
    model = fresh()
    for part in parts_of(model):
        part.compile(backend="aot_eager_decomp_partition")
    with compiler.patch(activation_memory_budget=budget):
        return measured_of(model)


def gradients(model):
    model.zero_grad()
    loss_on(model).backward()
    return {name: x.grad.clone() for name, x in model.named_parameters()}


@pytest.fixture(scope="module")
def measured():
    recomputed = fresh()
    checkpoint_layers(recomputed.layers)
    return {
        "plain": measured_of(fresh()),
        "recomputed": measured_of(recomputed),
        **{f"budget {share:g}": compiled(share, lambda model: model.layers) for share in (1.0, 0.5, 0.1, 0.0)},
        "as one, budget 0": compiled(0.0, lambda model: [model]),
    }


def test_a_budget_changes_no_gradient(measured):
    plain = measured["plain"][2]
    for _, _, found in measured.values():
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, plain[name], rtol=1e-5, atol=1e-6)


def test_of_layers_one_by_one_the_budget_lowers_what_is_kept_and_the_peak(measured):
    kept, peaks = (
        [measured[name][which] for name in ("plain", *(f"budget {share}" for share in ("1", "0.5", "0.1", "0")))]
        for which in (0, 1)
    )
    assert kept == sorted(kept, reverse=True) and kept[-1] < 0.15 * kept[0]
    assert kept[2] == pytest.approx((kept[1] + kept[4]) / 2, rel=0.1), "one half allows half of the difference"
    assert peaks[1] < 0.9 * peaks[0] and peaks[2] / peaks[1] == pytest.approx(3 / 5, abs=0.05), "two fifths less"
    by_hand = measured["recomputed"][1]
    assert all(0.85 * by_hand < peak < 1.05 * by_hand for peak in peaks[3:]), "from one tenth on as by hand"


def test_compiled_as_one_a_budget_of_0_keeps_least_and_stands_highest_of_those_compiled(measured):
    kept, peak, _ = measured["as one, budget 0"]
    others = [measured[name] for name in measured if name.startswith("budget")]
    assert kept < min(one[0] for one in others) and peak > max(one[1] for one in others)
