"""Over families, sizes, engines and degrees: parameters as theirs, each rank's too, and every degree that is named."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from functools import cache

import pytest
import torch
import transformers
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from course_lib.cli import train_checks
from course_lib.cli.doctor import asked_of
from course_lib.cli.doctor_whole import whole_pieces
from course_lib.cli.train_config import read_train
from course_lib.config import ParallelConfig
from course_lib.costs import model_parameters
from course_lib.costs.model.states import rank_parameters
from course_lib.costs.sweep.advice import indivisible, uneven
from course_lib.models.families import config_of
from course_lib.models.logits import Logits
from course_lib.parallel.table.layout import Layout, parameters_at
from course_lib.parallel.tensors.cutting import AXIS, write_table
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.styles import styles_of
from course_lib.training.pretrained import Pretrained

EXPERTS = ("mixtral", "olmoe", "deepseek_v2")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "olmo", "olmo2", "gpt2", *EXPERTS)
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)  # explaining traces every line
FEW = settings(max_examples=50, deadline=None, derandomize=True, database=None, phases=PHASES)


@st.composite
def configs(draw):
    """A small model of one family, with settings that it reads and others that it may not."""
    family, heads = draw(st.sampled_from(FAMILIES)), draw(st.integers(1, 12))
    head_dim, tie = 2 * draw(st.integers(1, 4)), draw(st.booleans())
    if family == "gpt2":
        return transformers.GPT2Config(
            n_embd=heads * head_dim,
            n_head=heads,
            n_layer=2,
            n_inner=draw(st.sampled_from((None, 24, 35))),
            vocab_size=draw(st.integers(8, 40)),
            n_positions=16,
            tie_word_embeddings=tie,
        )
    kv = heads if family == "deepseek_v2" else draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    sizes = {
        "hidden_size": heads * (head_dim if family in ("olmo", "olmo2", "olmoe") else 2 * draw(st.integers(1, 4))),
        "head_dim": head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "num_hidden_layers": 2,
        "intermediate_size": draw(st.integers(8, 40)),
        "vocab_size": draw(st.integers(8, 40)),
        "tie_word_embeddings": tie,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    if family != "deepseek_v2":
        sizes |= {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    if family in EXPERTS:
        many = {"mixtral": "num_local_experts", "olmoe": "num_experts", "deepseek_v2": "n_routed_experts"}[family]
        sizes |= {many: 4, "num_experts_per_tok": 2}
    if family == "deepseek_v2":
        sizes |= {"q_lora_rank": draw(st.sampled_from((None, 6))), "kv_lora_rank": 6, "qk_nope_head_dim": 4}
        sizes |= {"qk_rope_head_dim": 2, "v_head_dim": 4, "moe_intermediate_size": 10, "head_dim": None}
        sizes |= {"first_k_dense_replace": draw(st.integers(0, 1)), "n_shared_experts": draw(st.integers(1, 2))}
    return transformers.AutoConfig.for_model(family, **sizes)


@cache
def any_run(folder):
    """Composed once, which takes longer than all that is looked at here."""
    transformers.LlamaConfig().save_pretrained(folder)
    return read_train([f"model={folder}", "sequence=8", "batch=64"])


def run_of(folder, config, *, tp, engine="own"):
    """As if it had been asked for with `model=folder tp=… engine=…`."""
    run = any_run(folder)
    config.save_pretrained(folder)
    parallel = ParallelConfig(tp=tp)
    return replace(run, model=Pretrained(folder).shape(), parallel=parallel, engine=engine)


def on_meta(config):
    with torch.device("meta"):
        return Logits(transformers.AutoModelForCausalLM.from_config(config))


def refused(run):
    """What the ranks would say, before any is started."""
    try:
        with warnings.catch_warnings(action="ignore"):
            train_checks.check_shape(run)
    except ValueError as error:
        return str(error)
    return ""


@FEW
@given(config=configs())
def test_every_parameter_of_every_family_is_counted(config):
    assert model_parameters(config_of(config)) == sum(p.numel() for p in on_meta(config).parameters())


@FEW
@given(config=configs(), tp=st.integers(2, 12))
def test_a_rank_has_as_many_parameters_as_the_formula_says(tmp_path_factory, config, tp):
    run = run_of(tmp_path_factory.getbasetemp(), config, tp=tp)
    whole, _ = whole_pieces(run)
    try:
        formula = rank_parameters(run.model, run.parallel, whole=whole).total
    except ValueError:
        return  # it does not divide, which is another test's
    model = on_meta(config)
    layout = Layout(model, {AXIS: tp})
    with warnings.catch_warnings(action="ignore"):
        write_table(model, layout, styles_of(model, plan_for(model)))
    assert formula == max(parameters_at(layout, {AXIS: rank}) for rank in range(tp))


@FEW
@given(config=configs(), tp=st.integers(1, 16), engine=st.sampled_from(("own", "torch")))
def test_what_is_said_to_divide_is_what_the_ranks_take_and_every_degree_named_is_taken(
    tmp_path_factory, config, tp, engine
):
    folder = tmp_path_factory.getbasetemp()
    run = run_of(folder, config, tp=tp, engine=engine)
    asked = asked_of(run, whole_pieces(run)[0])
    said = indivisible(asked)
    assert bool(said) == bool(refused(run)), f"{said}, but ranks say: {refused(run) or 'nothing'}"
    for line in (*said, *uneven(asked)):
        for other in re.findall(r"tp=(\d+)", line.partition("; ")[2]):
            assert not refused(replace(run, parallel=ParallelConfig(tp=int(other)))), line
    if message := refused(run):
        for other in re.findall(r"\d+", (re.search(r"choose tp in \[(.*)\]", message) or [""])[0]):
            assert not refused(replace(run, parallel=ParallelConfig(tp=int(other)))), message


@pytest.mark.parametrize(("engine", "degrees"), [("own", "tp=4 and tp=28"), ("torch", "tp=4")])
def test_qwen_on_eight_ranks_is_told_of_degrees_that_all_its_heads_allow(tmp_path, engine, degrees):
    sizes = {"hidden_size": 56, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 256}
    config = transformers.Qwen2Config(**sizes, intermediate_size=112, num_hidden_layers=1)
    run = run_of(tmp_path, config, tp=8, engine=engine)
    assert indivisible(asked_of(run, whole_pieces(run)[0]))[0] == f"28 heads over tp=8; nearest that divide: {degrees}"
