"""Real models of transformers under tensor parallelism: the whole ladder, and text generated with a cache."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ladder_models import STEPS

from course_lib import comm
from course_lib.comm.traces import Traffic
from course_lib.config import TrainConfig
from course_lib.costs import kv_cache_bytes, tensor_step
from course_lib.models.families import config_of
from course_lib.models.logits import Logits
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.tensors.cutting import tensor_parallel
from course_lib.ranks import RankError, ledger, run_ranks, server
from course_lib.savers.lora import add_lora
from course_lib.training.batches import Batches
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

server.preload(*(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "olmo", "olmo2", "qwen3")))
VOCABULARY = 17  # divides by no number of ranks
TEXT = bytes(torch.randint(VOCABULARY, (1024,), generator=torch.Generator().manual_seed(0)).tolist())
TOKENS = Batches(text=TEXT, batch_size=4, sequence=5, ragged=True)
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "head_dim": 2,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.1,  # with their 0.02 norms would divide by little, and a first step be rough
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


def theirs(family, **changes):
    """A causal model of transformers, from its configuration; imported here, for the import takes seconds."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def alone(train, family, kv_heads):
    return Trainer(Logits(theirs(family, num_key_value_heads=kv_heads)), train)


def tensor_parallel_trainer(train, family, kv_heads):
    model = Logits(theirs(family, num_key_value_heads=kv_heads))
    return Trainer(model, train, mesh=make_mesh(tp=dist.get_world_size()), apply=(tensor(),))


def adapted(family):
    """Theirs with LoRA beside all matrices of the layers, as if it had been trained for a while."""
    model = add_lora(Logits(theirs(family, num_key_value_heads=2)), 3, targets=("model.model.layers.*.*.*_proj",))
    for name, parameter in model.named_parameters():
        if name.endswith(".B"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("family", ["Llama", "Olmo2"])
def test_the_ladder_with_adapters(family):
    """Also where a norm over all heads stands behind an adapted map, and each head of keys lies on two ranks."""

    def one(train):
        return Trainer(adapted(family), train)

    def many(train):
        return Trainer(adapted(family), train, mesh=make_mesh(tp=4), apply=(tensor(),))

    report = assert_parallel_equals(one, many, TOKENS, world_size=4, steps=STEPS, tolerance=1e-6)
    assert tuple(report.deviations) == RUNGS


@pytest.mark.parametrize(
    ("family", "kv_heads", "ranks"),
    [
        ("Olmo", 12, 1),
        ("Olmo", 6, 3),
        ("Llama", 1, 2),
        ("Olmo2", 6, 2),
        ("Qwen3", 6, 2),
        ("Llama", 2, 4),
        ("Olmo2", 2, 4),
    ],
)
def test_the_ladder(family, kv_heads, ranks):
    """Their norms and rotary angles are in float32."""
    models = {"family": family, "kv_heads": kv_heads}
    report = assert_parallel_equals(
        partial(alone, **models),
        partial(tensor_parallel_trainer, **models),
        TOKENS,
        world_size=ranks,
        tolerance=1e-6,
        steps=STEPS,
    )
    assert tuple(report.deviations) == RUNGS and report.narrow == torch.float32


def two_axes_trainer(train, family, kv_heads, tp):
    model = Logits(theirs(family, num_key_value_heads=kv_heads))
    mesh = make_mesh(dp=dist.get_world_size() // tp, tp=tp)
    return Trainer(model, train, mesh=mesh, apply=(tensor(), fully_shard()))


@pytest.mark.parametrize(
    ("family", "kv_heads", "dp", "tp"), [("Llama", 2, 1, 4), ("Olmo2", 2, 2, 2), ("Olmo", 6, 3, 2)]
)
def test_the_ladder_of_two_axes(family, kv_heads, dp, tp):
    models = {"family": family, "kv_heads": kv_heads}
    together = partial(two_axes_trainer, tp=tp, **models)
    report = assert_parallel_equals(
        partial(alone, **models), together, TOKENS, world_size=dp * tp, tolerance=1e-6, steps=STEPS
    )
    assert tuple(report.deviations) == RUNGS and report.narrow == torch.float32


def gradients_of_norms_over_all_heads():
    trainer = tensor_parallel_trainer(TrainConfig(), "Olmo2", 2)
    comm.ledger.clear()
    trainer.compute_gradients(TOKENS.batch(0))


def test_norms_over_all_heads_send_what_the_formula_says():
    """The squares of queries and of keys, forward and backward; copies of a kv head share its norm's gradient too."""
    run_ranks(gradients_of_norms_over_all_heads, 4)
    config = config_of(theirs("Olmo2", num_key_value_heads=2).config)
    assert config.qk_norm == "full"
    step = tensor_step(config, tp=4, batch=TOKENS.batch_size, sequence=TOKENS.sequence)
    assert Traffic.measured(ledger()) == Traffic.predicted([step])


PROMPT = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
NEW = 12


def generated(model):
    """The tokens that follow the prompt, and the bytes of keys and values that the model remembers in the end."""
    result = model.generate(
        PROMPT, max_new_tokens=NEW, do_sample=False, use_cache=True, return_dict_in_generate=True, pad_token_id=0
    )
    layers = result.past_key_values.layers
    return result.sequences, sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


def generated_on_ranks(tp, kv_heads):
    mesh = make_mesh(dp=dist.get_world_size() // tp, tp=tp)
    torch.manual_seed(mesh.get_local_rank("tp"))  # the weights are those of the group's first rank
    model = theirs("Llama", num_key_value_heads=kv_heads)
    layout = tensor_parallel(model, group=mesh.get_group("tp"))
    assert len(model.lm_head.weight) < VOCABULARY and "tp" in layout.cutting_axes
    return generated(model)


@pytest.mark.parametrize("tp", [4, 2])
def test_text_generated_with_a_cache(tp):
    torch.manual_seed(0)
    model = theirs("Llama", num_key_value_heads=2)
    expected, all_bytes = generated(model)
    assert len(set(expected[0, 5:].tolist())) > 2
    size = {"batch": 2, "sequence": 5 + NEW - 1, "itemsize": 4}  # the last token is not read any more
    assert all_bytes == kv_cache_bytes(config_of(model.config), **size)
    for tokens, cache_bytes in run_ranks(generated_on_ranks, 4, tp, 2):
        assert torch.equal(tokens, expected)
        assert cache_bytes == kv_cache_bytes(config_of(model.config), tp=tp, **size)


HEADS = [f"model.layers.*.self_attn.{kind}_proj" for kind in "qkv"]


def attention_masks():
    """Which probabilities each layer's attention drops in a step, and the weights that all ranks have after it."""
    torch.manual_seed(0)
    model = theirs("Llama", num_key_value_heads=2, attention_dropout=0.5, attn_implementation="eager")
    trainer = Trainer(
        Logits(model), TrainConfig(learning_rate=0.1), mesh=make_mesh(tp=dist.get_world_size()), apply=(tensor(),)
    )
    masks, drop = [], torch.nn.functional.dropout

    def noted(*args, **options):
        masks.append(drop(*args, **options))
        return masks[-1]

    with patch("torch.nn.functional.dropout", noted):
        trainer.step(TOKENS.batch(0))
    places = trainer.local.layout.places
    copies = {name: p.detach() for name, p in trainer.local.parameters.items() if not places[name].shard}
    return [mask.detach() != 0 for mask in masks], copies


def test_attention_drops_other_probabilities_on_each_rank():
    (masks, copies), *others = run_ranks(attention_masks, 4)
    assert len(masks) == 2 and masks[0].shape[1] == 3  # heads of a rank
    for theirs_, copies_too in others:
        assert not any(torch.equal(mask, other) for mask, other in zip(masks, theirs_, strict=True))
        assert copies and all(torch.equal(copies[name], copies_too[name]) for name in copies)


def with_a_layer_norm():
    model = theirs("Olmo2", num_key_value_heads=2)
    model.model.layers[1].self_attn.q_norm = torch.nn.LayerNorm(24)
    norms = {f"model.layers.*.self_attn.{kind}_norm": "full norm" for kind in "qk"}
    tensor_parallel(model, plan={**dict.fromkeys(HEADS, "column"), "model.layers.*.self_attn.o_proj": "row", **norms})


def test_a_norm_that_is_no_rms_norm_is_refused():
    message = "tensor: model.layers.1.self_attn.q_norm: a LayerNorm; the style 'full norm' cuts an RMSNorm; leave"
    with pytest.raises(RankError, match=message):
        run_ranks(with_a_layer_norm, 4)
