"""Real models of transformers under context and expert parallelism: the whole ladder, and what is refused."""

from __future__ import annotations

from functools import partial
from math import prod

import pytest
import torch
from ladder_models import STEPS
from sequence_models import DATA, said

from course_lib.config import TrainConfig
from course_lib.models.logits import Logits
from course_lib.models.registered import ATTENTIVE
from course_lib.parallel.table.mesh import AXES, make_mesh
from course_lib.ranks import run_ranks, server
from course_lib.training.batches import Batches
from course_lib.training.context_technique import context
from course_lib.training.expert_technique import experts
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

server.preload(*(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "mixtral", "qwen3", "qwen3_moe")))
VOCABULARY = 17
TEXT = bytes(torch.randint(VOCABULARY, (1024,), generator=torch.Generator().manual_seed(0)).tolist())
TOKENS = Batches(text=TEXT, batch_size=4, sequence=7, ragged=True)  # 7 positions divide by no number of ranks
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.1,  # with their 0.02 norms would divide by little, and a first step be rough
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
EXPERTS = {
    "Mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 8, "mlp_only_layers": [0]},
}

AROUND_EXPERTS = {  # what `plan_for` finds, with a warning that the ranks along tp have router and experts whole
    "model.model.embed_tokens": "vocabulary",
    **{f"model.model.layers.*.self_attn.{kind}_proj": "column" for kind in "qkv"},
    "model.model.layers.*.self_attn.o_proj": "row",
    "model.lm_head": "logits",
}


def theirs(family, **changes):
    """A causal model of transformers, from its configuration; imported here, for the import takes seconds."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES | EXPERTS.get(family, {}) | changes)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def alone(train, family="Llama", **changes):
    """One device, with their own attention and experts; of its two ways to compute these one takes float64."""
    return Trainer(Logits(theirs(family, experts_implementation="eager", **changes)), train)


def spread(train, family="Llama", *, method=None, order="zigzag", data=None, changes=(), **degrees):
    """The same on a mesh."""
    apply = []
    if "tp" in degrees:
        apply.append(tensor() if "ep" not in degrees else tensor(plan=AROUND_EXPERTS))
    if method is not None:
        apply.append(context(method, order=order))
    if "ep" in degrees:
        apply.append(experts())
    if data is not None:
        apply.append(DATA[data]())
    return Trainer(Logits(theirs(family, **dict(changes))), train, mesh=make_mesh(**degrees), apply=apply)


def climbs(family, *, tokens=TOKENS, **case):
    """Their norms and rotary angles are in float32."""
    many, degrees = partial(spread, family=family, **case), [case[axis] for axis in AXES if axis in case]
    one = partial(alone, family=family, **dict(case.get("changes", ())))
    report = assert_parallel_equals(one, many, tokens, world_size=prod(degrees), tolerance=1e-6, steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.narrow == torch.float32


@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("Qwen3", {"method": "all_gather", "cp": 3, "order": "contiguous"}),
        ("Llama", {"method": "ring", "cp": 4}),
        ("Llama", {"method": "ulysses", "cp": 3}),  # 2, 1, 1 heads of queries
        ("Qwen3", {"method": "ulysses", "cp": 4, "order": "contiguous", "changes": {"num_key_value_heads": 1}}),
        ("Qwen3", {"method": "ring", "cp": 2, "dp": 2, "data": "fsdp"}),
        ("Llama", {"method": "ulysses", "cp": 2, "tp": 2}),
        ("Llama", {"method": "all_gather", "cp": 2, "tp": 2, "changes": {"num_key_value_heads": 1}}),
    ],
    ids=str,
)
def test_sequences_are_shared(family, case):
    climbs(family, **case)


@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("Mixtral", {"ep": 4}),  # 2, 1, 1, 1 of them
        ("Qwen3Moe", {"ep": 3, "changes": {"norm_topk_prob": True}}),
        ("Qwen3Moe", {"ep": 2, "dp": 2, "data": "fsdp"}),
        ("Mixtral", {"ep": 2, "tp": 2}),
        ("Qwen3Moe", {"ep": 2, "cp": 2, "method": "ring", "data": "fsdp"}),
    ],
    ids=str,
)
def test_experts_are_spread(family, case):
    climbs(family, **case)


def outputs_and_gradients(family):
    """On a rank: the model's own numbers, and those of two ranks together."""
    tokens, found, whole = TOKENS.batch(0), [], {"sliding_window": None}
    for make in (partial(alone, **whole), partial(spread, method="ring", cp=2, changes=whole)):
        torch.manual_seed(0)
        trainer = make(TrainConfig(), family)
        trainer.compute_gradients(tokens)
        found.append({"": trainer.output(tokens[0]), **trainer.gradients()})
    return found


def test_in_each_family_that_is_named_positions_meet_in_attention_alone():
    """Else a rank would see what its own part of a sequence has to say, and nobody would notice."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    names = [CLASSES[family].removesuffix("ForCausalLM") for family in ATTENTIVE]
    for families in run_ranks(lambda: [outputs_and_gradients(name) for name in names], 2):
        for one, many in families:
            assert one.keys() == many.keys()
            for what, expected in one.items():
                torch.testing.assert_close(many[what], expected, rtol=1e-4, atol=1e-6)


def train_step(apply, family="Llama", changes=(), **degrees):
    """Make a trainer of some techniques, and let it take a step."""
    model = Logits(theirs(family, **dict(changes)))
    Trainer(model, TrainConfig(), mesh=make_mesh(**degrees), apply=[make() for make in apply]).step(TOKENS.batch(0))


SLIDING = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("apply", "case", "message"),
    [
        (
            context,
            {"family": "Qwen3", "changes": SLIDING | {"attention_dropout": 0.1}},
            "context: qwen3 with sliding_window=4, attention_dropout=0.1; a query meets all keys up to its own, ",
        ),
        (context, {"family": "Gemma2"}, "context: gemma2 with sliding_window=4096, attn_logit_softcapping=50.0; "),
        (
            context,
            {"changes": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}},
            "context: llama with rope_type='dynamic'; ",
        ),
        (context, {"family": "Granite"}, "context: model_type='granite'; whether positions meet in its attention "),
        (
            lambda: context("ulysses"),
            {"changes": {"num_attention_heads": 1, "num_key_value_heads": 1}},
            "ulysses: 1 heads of queries, 2 ranks; every rank has a head; choose cp <= 1, or the ring",
        ),
        (experts, {}, "experts: 0 experts in a layer, ep=2; every rank has one; give a model with experts"),
        (
            experts,
            {"family": "Mixtral", "changes": {"output_router_logits": True}},
            "experts: mixtral with output_router_logits=True; their balance loss is a product of means over a whole ",
        ),
        (
            experts,
            {"family": "GptOss", "changes": {"num_local_experts": 4}},
            "experts: model.layers.0.mlp.experts with has_bias=True, is_transposed=True; an expert is a gate ",
        ),
    ],
)
def test_what_cannot_be_is_told_on_every_rank(apply, case, message):
    axis = "ep" if apply is experts else "cp"
    for text in run_ranks(lambda: said(partial(train_step, [apply], **{axis: 2}, **case)), 2):
        assert text.startswith(message)


def test_cut_experts_of_theirs_are_told():
    work = partial(
        train_step, [lambda: tensor(plan=AROUND_EXPERTS), lambda: experts(cut_inner=True)], "Mixtral", tp=2, ep=1
    )
    for text in run_ranks(lambda: said(work), 2):
        assert text.startswith("experts: cut_inner of model.model.layers.0.mlp.experts; a gate and what it lets ")
