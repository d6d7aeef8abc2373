"""What checkpointed layers and a loss in pieces keep, by formula and by the gauges, on decoders of several shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from course_lib.cli.train_config import read_train
from course_lib.config import LLAMA_3_1_8B, ModelConfig, load_model
from course_lib.costs.model.activations import head_activations, layer_activations
from course_lib.costs.model.checkpointing import (
    best_group,
    chunked_head_activations,
    kept_results,
    recompute_peak_bytes,
    recomputed_bytes,
)
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.gauges.allocated import allocated_bytes, peak_bytes, saved_bytes
from course_lib.models.decoder import Decoder
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.savers.chunked_loss import ChunkedLoss
from course_lib.training.step import loss_of

SMALL = ModelConfig(
    name="small", hidden_size=64, n_layers=7, n_heads=4, n_kv_heads=2, ffn_size=172, vocab_size=256, tied=False
)
SHAPES = {"llama": SMALL, "wide heads": replace(SMALL, head_dim=32), "one layer": replace(SMALL, n_layers=1)}
SIZES = {"batch": 3, "sequence": 65}


def forward_of(config, *, group=None, keep="nothing"):
    """A model, and its forward pass with loss."""
    torch.manual_seed(0)
    model = Decoder(config)
    if group is not None:
        checkpoint_layers(model.layers, group=group, keep=keep)
    x, y = (torch.randint(config.vocab_size, (SIZES["batch"], SIZES["sequence"])) for _ in range(2))
    return model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("group", "keep"),
    [(1, "nothing"), (2, "nothing"), (7, "nothing"), (9, "nothing"), (1, "matmuls"), (3, "attention")],
)
def test_what_is_kept_equals_the_formula(shape, group, keep):
    config = SHAPES[shape]
    _, forward = forward_of(config, group=group, keep=keep)
    formula = recomputed_bytes(config, **SIZES, itemsize=4, group=group, keep=keep)
    tokens_and_targets, loss_and_divisor = 2 * 8 * SIZES["batch"] * SIZES["sequence"], 2 * 4
    assert allocated_bytes(forward) + tokens_and_targets == formula + loss_and_divisor


def test_groups_by_the_gauges_and_by_the_formula():
    """One layer is the best group, the root of all layers is worse, and one group of all saves nothing."""
    config = replace(SMALL, n_layers=16, vocab_size=64)

    def peak(group):
        model, forward = forward_of(config, group=group)
        return peak_bytes(lambda: forward().backward()), sum(4 * p.numel() for p in model.parameters())

    formula = {group: recompute_peak_bytes(config, **SIZES, itemsize=4, group=group) for group in (1, 2, 4, 16)}
    layer = sum(saved.nbytes for saved in layer_activations(config, **SIZES, itemsize=4))
    measured = {group: peak(group) for group in formula}
    for group, (found, gradients) in measured.items():
        assert formula[group] < found < formula[group] + gradients + layer
    everything = peak(None)[0]
    ones, twos, roots, all_of_them = (found for found, _ in measured.values())
    assert ones < twos < roots < all_of_them and roots > 1.5 * ones
    assert abs(all_of_them - everything) < 0.05 * everything
    assert best_group(config, **SIZES, itemsize=4) == 1


def test_the_best_groups_of_large_models():
    sizes = {"batch": 1, "sequence": 8192, "itemsize": 2}
    assert best_group(LLAMA_3_1_8B, **sizes) == 1 and best_group(load_model("llama3_1_70b"), **sizes) == 2


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("keep", ["nothing", "matmuls", "attention"])
def test_gradients_are_the_same_bit_by_bit(group, keep):
    found = []
    for how in ({}, {"group": group, "keep": keep}):
        model, forward = forward_of(SMALL, **how)
        forward().backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_under_autocast_it_computes_again_as_it_computed():
    found = []
    for how in ({}, {"group": 2}, {"group": 1, "keep": "matmuls"}):
        model, forward = forward_of(SMALL, **how)
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward()
        loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*found, strict=True))


def test_a_layer_that_computes_something_else_is_found_out():
    model, forward = forward_of(SMALL, group=1)
    once = iter([True])
    plain = model.layers[2].ffn.forward
    model.layers[2].ffn.forward = lambda x: plain(x) if next(once, False) else x
    with pytest.raises(RuntimeError, match="a layer computes the same both times"):
        forward().backward()


def test_without_gradients_nothing_is_kept_and_twice_backward_is_twice_the_gradient():
    model, forward = forward_of(SMALL, group=2)
    with torch.no_grad():
        assert allocated_bytes(forward) == 4
    loss = forward()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    assert all(torch.equal(2 * a, p.grad) for a, p in zip(once, model.parameters(), strict=True))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pieces", [1, 4, 7, 1000])
def test_a_loss_in_pieces(tied, pieces):
    """As many logits as a piece has tokens exist at a time; the gradients are those of the whole."""
    config = replace(SMALL, vocab_size=2000, n_layers=1, tied=tied)
    x, y = torch.randint(2000, (2, *SIZES.values()), generator=torch.Generator().manual_seed(0))
    y[0, 3:20] = -100  # which do not count
    found = []
    for way in ("whole", "pieces"):
        torch.manual_seed(0)
        model = Decoder(config).double()
        loss = ChunkedLoss(model.head, pieces, loss_of) if way == "pieces" else loss_of
        value = loss(model(x), y)
        value.backward()
        with torch.no_grad():
            found.append([value.detach(), model(x), *(p.grad for p in model.parameters())])
    assert all((a - b).abs().max().item() < 1e-11 for a, b in zip(*found, strict=True))


def test_logits_of_one_piece_exist_at_a_time():
    config = replace(SMALL, vocab_size=8000, n_layers=1)
    sizes = {**SIZES, "itemsize": 4}
    x, y = torch.randint(8000, (2, *SIZES.values()))

    def step(pieces):
        model = Decoder(config)
        loss = ChunkedLoss(model.head, pieces, loss_of) if pieces else loss_of
        kept = saved_bytes(model, lambda: loss(model(x), y))
        return kept, peak_bytes(lambda: loss(model(x), y).backward())

    (whole_kept, whole), (kept, peak) = step(0), step(8)
    logits = sum(s.nbytes for s in head_activations(config, **sizes) if s.name == "log-probabilities")
    piece = sum(s.nbytes for s in chunked_head_activations(config, **sizes, pieces=8) if s.name == "log-probabilities")
    assert piece == -(-3 * 65 // 8) * 8000 * 4
    assert kept < whole_kept - logits + 200  # a few numbers
    assert whole > 2 * logits and peak < whole - 2 * (logits - piece)


def test_what_the_formulas_refuse():
    sizes = {**SIZES, "itemsize": 4}
    with pytest.raises(ValueError, match=r"kept_results: keep='all'; not a known choice; choose from nothing, matmuls"):
        kept_results(SMALL, **sizes, keep="all")
    with pytest.raises(ValueError, match=r"recomputed_bytes: group=0; a group has layers; give group >= 1"):
        recomputed_bytes(SMALL, **sizes, group=0)
    with pytest.raises(ValueError, match=r"chunked_head_activations: pieces=0; a loss is made of pieces; give pieces"):
        chunked_head_activations(SMALL, **sizes, pieces=0)


@pytest.mark.parametrize(("group", "keep", "pieces"), [(1, "matmuls", 1), (3, "nothing", 4), (7, "nothing", 1000)])
def test_the_one_question_of_memory_counts_the_same(group, keep, pieces):
    """What doctor asks for a run: with one unit of memory beside, which is none."""
    sizes = {**SIZES, "itemsize": 4}
    job = Job(
        model=SMALL,
        batch=3,
        sequence=65,
        recompute="selective" if keep == "matmuls" else "layers",
        group=group,
        loss_pieces=pieces,
        itemsize=4,
        logit_bytes=4,
        fused_norms=False,
        software=Software(kind="legacy", kernel="flash2"),
        beside=False,
    )
    found = gpu_memory(job)
    head = sum(saved.nbytes for saved in chunked_head_activations(SMALL, **sizes, pieces=pieces))
    angles = 4 * 65 * SMALL.head_size // 2
    peak = recompute_peak_bytes(SMALL, **sizes, group=group, keep=keep)
    bare = 3 * 65 * 64 * 4  # a group's first input, which is counted as kept
    assert (found.activations, found.head) == (peak - angles - bare, head)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("engine=torch recompute=groups:2", "engine=torch with recompute=groups:2; PyTorch's engine computes each"),
        ("engine=torch loss_chunks=2", "engine=torch with loss_chunks=2; PyTorch's engine makes the logits at once; "),
        ("dp=2 zero_stage=3 precision=bf16 loss_chunks=2", "precision=bf16 with loss_chunks=2; stage 3 g"),
    ],
)
def test_what_train_refuses_of_them(given, said):
    with pytest.raises(ValueError) as caught:
        read_train(given.split())
    assert str(caught.value).startswith(f"train: {said}")
