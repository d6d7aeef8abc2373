"""Plans of tensor parallelism that nobody wrote, and what the linter says about plans; no rank is started."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from torch import nn

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.models.logits import Logits
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.tensors.cutting import write_table
from course_lib.parallel.tensors.lint import lint
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.styles import styles_of

WHOLE_HEADS = "a head stays whole; keys and values of fewer heads than ranks are copied to equally many ranks"
NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 6,
    "num_key_value_heads": 2,
    "vocab_size": 17,
    **NO_TOKENS,
}
BLOCKS = {
    **{f"model.layers.*.self_attn.{kind}_proj": "column" for kind in "qkv"},
    "model.layers.*.self_attn.o_proj": "row",
    "model.layers.*.mlp.gate_proj": "column",
    "model.layers.*.mlp.up_proj": "column",
    "model.layers.*.mlp.down_proj": "row",
}
ENDS = {"model.embed_tokens": "vocabulary", "lm_head": "logits"}


def theirs(family, **changes):
    """A causal model of transformers without numbers."""
    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    with torch.device("meta"):
        return getattr(transformers, f"{family}ForCausalLM")(config)


def norms(style):
    return {f"model.layers.*.self_attn.{kind}_norm": style for kind in "qk"}


@pytest.mark.parametrize(
    ("family", "changes", "more"),
    [
        ("Llama", {"attention_bias": True}, {}),
        ("Olmo", {"tie_word_embeddings": True}, {}),
        ("Olmo2", {}, norms("full norm")),
        ("Olmo2", {"num_key_value_heads": 1}, {**norms("full norm"), "model.layers.*.self_attn.k_norm": "shared"}),
        ("Qwen3", {"head_dim": 8}, norms("shared")),
    ],
)
def test_a_plan_from_their_own(family, changes, more):
    model = theirs(family, **changes)
    assert plan_for(model) == {**ENDS, **BLOCKS, **more}
    wrapped = Logits(model)
    assert plan_for(wrapped) == {f"model.{name}": style for name, style in plan_for(model).items()}
    for tp in (1, 2, 4):
        assert not [finding for finding in lint(wrapped, plan_for(wrapped), tp) if finding.fault]


def test_a_plan_from_names_and_what_stays_whole_is_said():
    opt = theirs("OPT", ffn_dim=40, word_embed_proj_dim=24)
    with pytest.warns(UserWarning) as said:
        plan = plan_for(opt)
    assert {name.removeprefix("model.decoder."): style for name, style in plan.items()} == {
        "embed_tokens": "vocabulary",
        "lm_head": "logits",
        "layers.*.fc1": "column",
        "layers.*.fc2": "row",
    }
    (message,) = (str(warning.message) for warning in said)
    assert "self_attn.q_proj" in message and "(it counts heads by its own num_heads)" in message
    assert not [finding for finding in lint(opt, plan, 2) if finding.fault]


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("Phi3", r"qkv_proj \(qkv_proj are not one map each of .*gate_up_proj gives 40 features, down_proj reads 20"),
        ("Mixtral", r"mlp\.experts\.gate_up_proj, .*\(nothing says how it could be cut\)"),
        ("Gemma", r"model\.embed_tokens \(it is no plain Embedding or Linear, or is tied to more"),
        ("BitNet", r"attn_sub_norm\.weight may work on features that would be cut"),
    ],
)
def test_what_cannot_be_cut_safely_stays_whole(family, reason):
    model = theirs(family)
    with pytest.warns(UserWarning, match=rf"^plan_for: every rank has these whole: .*{reason}"):
        plan = plan_for(model)
    assert not {name for name in plan if any(word in reason and word in name for word in ("mlp", "qkv", "o_proj"))}
    assert not [finding for finding in lint(model, plan, 2) if finding.fault]


class Mixing(nn.Module):
    """A weight as long as a head, and a mean over all heads: its length alone says nothing."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.weight * x * x.square().mean((-1, -2), keepdim=True).rsqrt()


def with_norm(make):
    """A Qwen3 with other norms of queries."""
    model = theirs("Qwen3")
    for layer in model.model.layers:
        layer.self_attn.q_norm = make()
    return model


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (theirs("Cohere", use_qk_norm=True), "4, 6"),
        (theirs("Cohere", head_dim=4, use_qk_norm=True, hidden_size=16), "4, 4"),  # as many as a head is wide
        (with_norm(Mixing), "6,"),
        (with_norm(lambda: nn.LayerNorm(24)), "24,"),
        (with_norm(lambda: nn.RMSNorm(8)), "8,"),
    ],
)
def test_a_norm_whose_kind_is_not_proven_leaves_its_attention_whole(model, shape):
    reason = rf"\(q_norm, a weight of \({shape}\), is a norm neither of each head nor an RMSNorm over all"
    with pytest.warns(UserWarning, match=rf"self_attn\.q_proj, .*self_attn\.o_proj {reason}"):
        plan = plan_for(model)
    assert not [name for name in plan if "attn" in name] and any("mlp" in name for name in plan)
    assert not [finding for finding in lint(model, plan, 2) if finding.fault]


def test_a_norm_of_each_head_need_be_no_rms_norm():
    assert plan_for(with_norm(lambda: nn.LayerNorm(6)))["model.layers.*.self_attn.q_norm"] == "shared"


def test_gpt2_keeps_its_fused_maps():
    config = transformers.GPT2Config(n_embd=24, n_layer=2, n_head=4, vocab_size=17, n_positions=8, **NO_TOKENS)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    with pytest.warns(UserWarning, match=r"attn\.c_attn, .*\(c_proj is a Conv1D, and what is cut is a Linear\)"):
        assert plan_for(model) == {"transformer.wte": "vocabulary", "lm_head": "logits"}


def test_a_model_of_nobody_is_refused():
    with pytest.raises(
        ValueError, match="^plan_for: a Linear; which maps follow each other is not written in a model; "
    ):
        plan_for(nn.Linear(2, 2))


def decoder(**changes):
    fields = {"name": "small", "hidden_size": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_size": 20}
    with torch.device("meta"):
        return Decoder(ModelConfig(**fields | {"vocab_size": 17, "tied": True} | changes))


def test_notes_on_a_plan_that_is_right():
    model = decoder()
    assert list(map(str, lint(model, plan_for(model), 3))) == [
        f"fault: layers.*.attention.q_proj: 4 heads on 3 ranks; {WHOLE_HEADS}; choose tp in [1, 2, 4]",
        f"fault: layers.*.attention.k_proj: 2 heads on 3 ranks; {WHOLE_HEADS}; choose tp in [1, 2, 4]",
        f"fault: layers.*.attention.v_proj: 2 heads on 3 ranks; {WHOLE_HEADS}; choose tp in [1, 2, 4]",
        "note: embedding: 17 on 3 ranks are 6 to 5; padded to 18, all have 6",
        *(
            f"note: layers.*.ffn.{kind}_proj: 20 on 3 ranks are 7 to 6; padded to 21, all have 7"
            for kind in ("gate", "up", "down")
        ),
        "note: head: 17 on 3 ranks are 6 to 5; padded to 18, all have 6",
    ]
    assert lint(model, plan_for(model), 1) == []
    copied = [finding for finding in lint(model, plan_for(model), 4) if "k_proj" in finding.where]
    assert [str(finding) for finding in copied] == [
        "note: layers.*.attention.k_proj: its heads, 2 on 4 ranks, lie on 2 ranks each"
    ]


def gated():
    """A number of each head decides how much of it passes, as in LFM3."""
    model = decoder(head_dim=8)
    for layer in model.layers:
        layer.attention.gate = nn.Linear(24, 4)
    return model


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        (decoder(), {"layers.*.ffn.down_proj": None}, "layers.*.ffn: a cut needs maps by column and one by row"),
        (decoder(), {"layers.*.attention.q_proj": None}, "layers.*.attention: k_proj, v_proj are not one map each"),
        (decoder(), {"layers.*.ffn.up_proj": None, "layers.*.ffn.gate_proj": None}, "layers.*.ffn: a cut needs maps"),
        (decoder(), {"layer.*.ffn": "row"}, "layer.*.ffn: no module is called so"),
        (decoder(), {"layers.*.ffn": "row"}, "layers.*.ffn: a GatedFeedForward; the style 'row' cuts a Linear; "),
        (decoder(), {"layers.*.ffn.up_proj": "rows"}, "layers.*.ffn.up_proj: style 'rows'; there is no such style; "),
        (decoder(), {"head": None}, "embedding: one tied weight, Shard(dim=0) in embedding and whole in head; "),
        (decoder(), {"head": "row"}, "embedding: one tied weight, Shard(dim=0) in embedding and Shard(dim=1) in"),
        (gated(), {}, "layers.*.attention: gate.weight may work on features that would be cut"),
        (
            theirs("Olmo2"),
            norms(None),
            "model.layers.*.self_attn: q_norm works on features that are cut, and needs the",
        ),
        (theirs("Qwen3", head_dim=8), norms("full norm"), "k_norm works on features that are cut, and needs the style"),
        (
            decoder(),
            {"layers.*.ffn.up_proj": None},
            "layers.*.ffn: up_proj.weight may work on features that would be cut",
        ),
    ],
)
def test_faults_are_found(model, changes, says):
    plan = {name: style for name, style in {**plan_for(model), **changes}.items() if style}
    faults = [str(finding) for finding in lint(model, plan, 2) if finding.fault]
    assert any(says in fault for fault in faults)


class Scaled(nn.Embedding):
    """One that computes something else than what it inherits."""

    def forward(self, tokens):
        return super().forward(tokens) * 24**0.5


def test_a_layer_that_inherits_is_no_layer_that_a_style_cuts():
    model = decoder(tied=False)
    model.embedding = Scaled(17, 24)
    fault, *_ = lint(model, plan_for(model), 2)
    assert str(fault).startswith("fault: embedding: a Scaled; the style 'vocabulary' cuts an Embedding; leave it out ")
    with pytest.raises(ValueError, match=f"^{re.escape(str(fault).replace('fault', 'tensor'))}$"):
        write_table(model, Layout(model, {"tp": 2}), styles_of(model, plan_for(model)))


def test_hooks_of_a_layer_that_is_cut_are_a_fault_and_those_around_it_are_none():
    model = decoder()
    model.layers[1].ffn.register_forward_hook(lambda *_: None)
    assert not lint(model, plan_for(model), 1)
    model.layers[1].ffn.up_proj.register_full_backward_hook(lambda *_: None)
    (fault,) = lint(model, plan_for(model), 1)
    assert str(fault).startswith("fault: layers.*.ffn.up_proj: it has backward_hooks; a part of it takes its place, ")
    with pytest.raises(ValueError, match="^tensor: layers.1.ffn.up_proj: it has backward_hooks; "):
        write_table(model, Layout(model, {"tp": 1}), styles_of(model, plan_for(model)))


def test_a_table_is_written_without_ranks_for_a_model_with_dropout_too():
    model = decoder()
    model.dropout = nn.Dropout(0.1)
    layout = Layout(model, {"tp": 2})
    write_table(model, layout, styles_of(model, plan_for(model)))
    assert layout.size_at("embedding.weight", {"tp": 0}) == 9 * 24
