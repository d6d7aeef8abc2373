"""Activations: our count against what autograd really keeps, and the published formulas against their papers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from course_lib.config import LLAMA_3_1_8B, ModelConfig, ParallelConfig, load_model
from course_lib.costs import (
    checkpointed_activations,
    head_activations,
    interleaving_memory,
    is_llama,
    korthikanti_first_stage_bytes,
    korthikanti_layer_bytes,
    layer_activations,
    model_parameters,
    workshop_activations,
)
from course_lib.models.decoder import Decoder, rotary_angles
from course_lib.units import GiB

GPT3 = load_model("gpt3_175b")
GQA = ModelConfig(
    name="grouped", hidden_size=384, n_layers=3, n_heads=12, n_kv_heads=4, ffn_size=1040, vocab_size=900, tied=False
)
SHAPES = {
    "grouped": GQA,
    "as many kv heads": replace(GQA, name="as many kv heads", n_kv_heads=12, n_layers=2, hidden_size=288),
    "one kv head, tied": replace(GQA, name="one kv head, tied", n_kv_heads=1, tied=True, ffn_size=512),
    "Llama's proportions": replace(GQA, name="Llama's proportions", hidden_size=256, n_heads=8, n_kv_heads=2),
}
sizes = pytest.mark.parametrize(("batch", "sequence"), [(1, 48), (3, 17)])
formats = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def test_of_fewer_kv_heads_than_ranks_each_rank_keeps_one():
    """4 heads of keys and values: 3 of 12 queries' heads at tp 4, 1 at tp 12, and one of keys at both."""
    normed = replace(GQA, qk_norm="head")
    kept = {saved.name: saved for saved in layer_activations(normed, batch=1, sequence=48, itemsize=2)}
    names = [name for name in kept if name.startswith(("key", "value", "query"))]
    for name in names:
        at_4, at_12 = (kept[name].on_rank(ParallelConfig(tp=tp)) for tp in (4, 12))
        assert at_4 == (3 * at_12 if name.startswith("query") else at_12) == kept[name].nbytes // 4
    assert len(names) > 4


def kept_bytes(model, forward):
    """Bytes of the distinct memory that autograd keeps, without the model's own weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in storages.values())


def tokens(config, batch, sequence):
    return torch.randint(config.vocab_size, (batch, sequence), generator=torch.Generator().manual_seed(1))


def predicted(config, batch, sequence, dtype):
    layer = layer_activations(config, batch=batch, sequence=sequence, itemsize=dtype.itemsize)
    head = head_activations(config, batch=batch, sequence=sequence, itemsize=dtype.itemsize)
    return config.n_layers * sum(saved.nbytes for saved in layer) + sum(saved.nbytes for saved in head)


@pytest.mark.parametrize("shape", SHAPES)
@sizes
@formats
def test_autograd_keeps_what_we_count_to_the_byte(shape, batch, sequence, dtype):
    config = SHAPES[shape]
    model, x, y = Decoder(config).to(dtype), tokens(config, batch, sequence), tokens(config, batch, sequence)
    found = kept_bytes(model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()))
    count_of_targets = dtype.itemsize  # cross-entropy keeps one number, by which it divides
    assert found == predicted(config, batch, sequence, dtype) + count_of_targets


@formats
def test_a_recomputed_layer_keeps_its_input(dtype):
    model = Decoder(GQA).to(dtype)
    angles = rotary_angles(40, GQA.head_size, torch.device("cpu"))
    x = torch.randn(2, 40, GQA.hidden_size, dtype=dtype, requires_grad=True)

    def forward():
        out = x
        for layer in model.layers:
            out = checkpoint(layer, out, angles, use_reentrant=False)

    (saved,) = checkpointed_activations(GQA, batch=2, sequence=40, itemsize=dtype.itemsize)
    # Angles are one small tensor that all layers share; checkpoint also keeps empty places for what it dropped.
    assert kept_bytes(model, forward) == pytest.approx(GQA.n_layers * saved.nbytes + angles.nbytes, rel=0.01)


def test_the_closed_form_of_the_docstring():
    H, kv, ffn, A, S, e = 4096, 1024, 14336, 32, 4096, 2
    saved = sum(saved.nbytes for saved in layer_activations(LLAMA_3_1_8B, batch=1, sequence=S, itemsize=e))
    assert saved == S * (e * (4 * H + 2 * kv + 4 * ffn) + 16 * H + 4 * A + 8) + 4 * S * 128 * e
    fused = layer_activations(LLAMA_3_1_8B, batch=1, sequence=S, itemsize=e, fused_norms=True)
    assert saved - sum(saved.nbytes for saved in fused) == S * (16 * H - 2 * H * e)


def test_one_layer_of_llama_8b_as_traced_with_torch():
    layer = layer_activations(LLAMA_3_1_8B, batch=1, sequence=4096, itemsize=2)
    assert sum(saved.nbytes for saved in layer) / GiB == pytest.approx(0.829, rel=0.01)  # MemTracker, per layer
    gpt = korthikanti_layer_bytes(LLAMA_3_1_8B, batch=1, sequence=4096, recompute="selective")
    assert gpt / GiB == pytest.approx(0.531, rel=0.01)  # no SwiGLU, no fp32 in the norms: 36 % too little


def on_rank(parallel, **options):
    layer = layer_activations(LLAMA_3_1_8B, batch=1, sequence=4096, itemsize=2, fused_norms=True)
    return sum(saved.on_rank(parallel, **options) for saved in layer)


def test_tensor_parallel_ranks_share_what_matrices_make_and_with_the_sequence_all():
    T, H, A = 4096, 4096, 32
    matrices = T * (2 * (2 * H + 2 * 1024 + 4 * 14336) + 4 * A)  # query, output, keys, values, block, scores
    outside = T * (2 * 2 * H + 8) + T * 2 * 2 * H  # norms; inputs of the two blocks
    rotations = 4 * T * 128 * 2
    assert on_rank(ParallelConfig()) == matrices + outside + rotations
    assert on_rank(ParallelConfig(tp=8)) == matrices / 8 + outside + rotations
    shared = ParallelConfig(tp=8, sequence_parallel=True)
    assert on_rank(shared) == (matrices + outside) / 8 + rotations
    # DTensor keeps the two gathered inputs whole.
    assert on_rank(shared, keep_gathered=True) - on_rank(shared) == T * 2 * 2 * H * 7 / 8


def test_a_tensor_that_does_not_divide_is_rounded_up():
    (layer_input,) = checkpointed_activations(GQA, batch=1, sequence=1, itemsize=1)
    assert layer_input.on_rank(ParallelConfig(tp=5, sequence_parallel=True)) == 77  # 384 / 5 = 76.8


@pytest.mark.parametrize("name", ["batch", "sequence", "itemsize"])
@pytest.mark.parametrize("count", [layer_activations, head_activations, checkpointed_activations])
def test_sizes_are_positive(count, name):
    given = {"batch": 1, "sequence": 8, "itemsize": 2, name: 0}
    with pytest.raises(ValueError, match=rf"^activations: {name}=0; {name} is positive; give {name} >= 1$"):
        count(GQA, **given)


@pytest.mark.parametrize("name", ["mixtral_8x7b", "deepseek_v2", "grok_1"])
def test_experts_are_refused(name):
    assert not is_llama(load_model(name))
    with pytest.raises(ValueError, match=r"^layer_activations: .*; the tensors are those of one block, .*; use expl"):
        layer_activations(load_model(name), batch=1, sequence=8, itemsize=2)


def test_the_workshop_s_batch_of_256_needs_51_terabytes():
    numbers = workshop_activations(load_model("olmo_70b_workshop"), batch=256, sequence=4096)
    assert round(numbers / 1e12, 1) == 25.5
    assert round(2 * numbers / 1e12) == 51
    assert 2 * numbers > 50 * 14 * model_parameters(load_model("olmo_70b_workshop"))


def in_sbh(config=GPT3, **options):
    """Korthikanti's bytes as a multiple of sbh."""
    return korthikanti_layer_bytes(config, batch=1, sequence=2048, **options) / (2048 * config.hidden_size)


def test_korthikanti_s_table_2():
    scores = 80  # 5as/h of GPT-3
    assert in_sbh() == 34 + scores
    assert in_sbh(tp=8) == 10 + (24 + scores) / 8
    assert in_sbh(tp=8, sequence_parallel=True) == (34 + scores) / 8
    assert in_sbh(tp=8, recompute="selective") == 10 + 24 / 8
    assert in_sbh(tp=8, sequence_parallel=True, recompute="selective") == 34 / 8
    assert in_sbh(tp=8, sequence_parallel=True, recompute="full") == in_sbh(recompute="full") == 2


def test_what_was_gathered_stays_whole_or_is_gathered_again():
    kept = in_sbh(tp=8, sequence_parallel=True, keep_gathered=True, recompute="selective")
    assert kept == 4 + 30 / 8
    assert kept - in_sbh(tp=8, sequence_parallel=True, recompute="selective") == 2 * 2 * 7 / 8  # two inputs in 16 bits
    assert in_sbh(tp=8, keep_gathered=True) == in_sbh(tp=8)  # without sequence parallelism nothing is gathered


@pytest.mark.parametrize(("name", "share"), [("gpt3_175b", 0.70), ("megatron_529_6b", 0.65)])
def test_selective_recompute_saves_what_korthikanti_prints(name, share):
    config = load_model(name)
    assert round(1 - in_sbh(config, recompute="selective") / in_sbh(config), 2) == share


def test_korthikanti_s_first_stage():
    sbh = 2048 * GPT3.hidden_size
    given = {"batch": 1, "sequence": 2048, "tp": 8, "recompute": "selective"}
    layers = 96 * 34 / 8 * sbh
    head = 4 * sbh / 8 * (1 + GPT3.vocab_size / GPT3.hidden_size)
    assert korthikanti_first_stage_bytes(GPT3, **given) == pytest.approx(layers + sbh / 8 + head)
    assert korthikanti_first_stage_bytes(GPT3, pp=8, **given) == layers + 8 * sbh / 8
    interleaved = korthikanti_first_stage_bytes(GPT3, pp=8, chunks=3, **given)
    assert interleaved == pytest.approx(layers * (1 + 7 / 24) + sbh)


def test_interleaving_keeps_more():
    assert interleaving_memory(pp=8, chunks=1) == 1
    assert interleaving_memory(pp=8, chunks=2) == 1 + 7 / 16
    assert interleaving_memory(pp=1, chunks=4) == 1


def test_an_unknown_way_to_recompute_is_refused():
    with pytest.raises(ValueError, match=r"^korthikanti_layer_bytes: recompute='some'; not .*; choose one of none"):
        korthikanti_layer_bytes(GPT3, batch=1, sequence=1, recompute="some")
