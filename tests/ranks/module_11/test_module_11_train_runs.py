"""`train` with memory savers: ranks give one device's losses, a run goes on to the bit, also at another layout."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file

from course_lib.cli import train_run
from course_lib.cli.doctor import asked_of
from course_lib.cli.main import main
from course_lib.cli.train_config import read_train
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.ranks import devices, run_ranks
from course_lib.savers.quantised_linear import NF4Linear
from course_lib.training.checkpoint import FILE
from tests.overrides import last_of

SMALL = ["steps=4", "batch=8", "sequence=12", "lr=0.05", "precision=fp64", "weight_decay=0.1", "max_norm=0.5"]
SAVERS = {
    "lora": ["adapter=lora", "rank=4"],
    "ia3": ["adapter=ia3"],
    "qlora": ["adapter=qlora", "rank=4"],
    "naive": ["attention=naive"],
    "tiles": ["attention=tiles"],
    "adamw8bit": ["optimizer=adamw8bit"],
    "selective": ["recompute=selective"],
}
WITHIN = {"adamw8bit": 1e-7}  # which computes in fp32, whatever the weights are in; all others: 1e-11
LAYOUTS = {
    "lora": [
        ["dp=2"],
        ["dp=2", "engine=torch"],
        ["dp=2", "zero_stage=3", "engine=torch"],
        ["dp=2", "tp=2", "zero_stage=3", "sequence_parallel=keep"],
        ["dp=2", "ep=2", "zero_stage=3", "model=tiny_mixtral"],
    ],
    "ia3": [["dp=2", "zero_stage=2"], ["tp=4"]],
    "qlora": [["dp=4", "zero_stage=3"], ["dp=2", "pp=2", "zero_stage=1"], ["cp=2", "context=ulysses"]],
    "tiles": [["dp=2", "tp=2", "recompute=layers"]],
    "naive": [["tp=2", "engine=torch"]],
    "adamw8bit": [["dp=2", "cp=2"]],
    "selective": [["dp=2", "ep=2", "zero_stage=3", "model=tiny_mixtral"]],
}
EACH = [(saver, layout) for saver, layouts in LAYOUTS.items() for layout in layouts]


def train_here(words):
    """What `train` does on each of its ranks; the steps' losses."""
    run = read_train(words)
    batches = train_run.make_batches(run)
    choice = devices.choose(dist.get_rank(), run.ranks, "cpu") if run.ranks > 1 else devices.choose_for_training(0, 1)
    return [step.loss for step in train_run.work(run, batches, choice, False, bool)]


def losses(*words):
    words = last_of(*SMALL, *words)
    ranks = read_train(words).ranks
    return train_here(words) if ranks == 1 else run_ranks(train_here, ranks, words, timeout=120)[-1]


@pytest.fixture(scope="module")
def alone():
    """Losses of one device, by saver and model."""
    known = {}

    def found(saver, model):
        if (saver, model) not in known:
            known[saver, model] = losses(*SAVERS[saver], *model)
        return known[saver, model]

    return found


@pytest.mark.parametrize(("saver", "layout"), EACH, ids=str)
def test_ranks_give_the_losses_of_one_device(saver, layout, alone):
    model = tuple(word for word in layout if word.startswith("model="))
    wanted, found = alone(saver, model), losses(*SAVERS[saver], *layout)
    assert wanted[-1] < wanted[0] - 1e-4
    assert found == pytest.approx(wanted, rel=WITHIN.get(saver, 1e-11))


def run_in(folder, *words):
    """A run with a folder; on several ranks the first one makes it, as the command does."""
    words = last_of(*SMALL, *words, f"out={folder}")
    folder.mkdir(exist_ok=True)
    ranks = read_train(words).ranks
    return train_here(words) if ranks == 1 else run_ranks(train_here, ranks, words, timeout=120)[0]


@pytest.mark.parametrize(
    ("saver", "layout", "other"),
    [
        ("qlora", ["dp=2", "zero_stage=3"], []),
        ("ia3", [], ["tp=2"]),
        ("adamw8bit", ["pp=2"], ["dp=2"]),
    ],
    ids=str,
)
def test_a_run_goes_on_to_the_bit_and_at_another_layout(saver, layout, other, tmp_path):
    """With checkpoints that have no frozen weight."""
    saved = [*SAVERS[saver], *layout]
    whole = losses(*saved)
    for name, then in (("same", layout), ("other", other)):
        assert run_in(tmp_path / name, *saved, "steps=2") == whole[:2]
        found = run_in(tmp_path / name, *SAVERS[saver], *then)
        if name == "same":
            assert found == whole
        else:
            assert found == pytest.approx(whole, rel=WITHIN.get(saver, 1e-11))


def test_a_checkpoint_has_the_adapters_alone(tmp_path):
    run_in(tmp_path / "run", *SAVERS["qlora"], "steps=1")
    saved = torch.load(tmp_path / "run" / "step-1" / FILE, weights_only=True)
    assert {name.rpartition(".")[2] for name in saved["model"]} == {"A", "B"}
    assert len(saved["optimizer"]["state"]) == len(saved["model"]) == 2 * 2 * 7


SIZES = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 256, "initializer_range": 0.1, "attention_bias": True},
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder of Hugging Face."""
    folder = tmp_path_factory.mktemp("brought") / "llama"
    torch.manual_seed(3)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).double().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("saver", "layout"), [("lora", ["dp=2", "tp=2"]), ("qlora", ["dp=2", "zero_stage=3"]), ("ia3", ["tp=2"])], ids=str
)
def test_a_folder_s_model_with_adapters(saver, layout, llama, tmp_path):
    """What is left of a run is what `peft` reads, under its names: merged by them it computes what was trained."""
    words = [f"model={llama}", *SAVERS[saver], "steps=2"]
    wanted = run_in(tmp_path / "alone", *words)
    assert run_in(tmp_path / "ranks", *words, *layout) == pytest.approx(wanted, rel=1e-11)
    tokens = torch.arange(12)[None]
    run = read_train(last_of(*SMALL, *words, f"out={tmp_path}/ranks"))
    trainer, _ = train_run.begun(run, torch.device("cpu"))  # on one device, from what ranks wrote
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64)
    before = model(tokens).logits
    for name, module in trainer.model.named_modules():
        if isinstance(module, NF4Linear):  # they stand beside the weights that the codes say
            model.get_submodule(name.removeprefix("model.").removesuffix(".base")).weight.data.copy_(module.dense())
    merge(model, load_file(tmp_path / "ranks" / "adapter" / "adapter_model.safetensors"))
    with torch.no_grad():
        assert (model(tokens).logits - before).abs().max() > 1e-3
        torch.testing.assert_close(model(tokens).logits, trainer.output(tokens), rtol=1e-10, atol=1e-10)


def test_beside_maps_that_lie_transposed_ranks_train_the_same_and_say_so(tmp_path):
    """GPT-2's, one of which makes queries, keys and values."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 32, "eos_token_id": 1}
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    torch.manual_seed(3)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **still)).double().save_pretrained(tmp_path / "gpt2")
    words = [f"model={tmp_path}/gpt2", *SAVERS["lora"]]
    wanted = run_in(tmp_path / "alone", *words)
    assert wanted[-1] < wanted[0]
    assert run_in(tmp_path / "ranks", *words, "dp=2", "zero_stage=3") == pytest.approx(wanted, rel=1e-11)
    saved = load_file(tmp_path / "ranks" / "adapter" / "adapter_model.safetensors")
    joined = {name.rpartition("lora_")[2]: x.shape for name, x in saved.items() if "h.0.attn.c_attn" in name}
    assert joined == {"A.weight": (4, 32), "B.weight": (96, 4)}
    config = json.loads((tmp_path / "ranks" / "adapter" / "adapter_config.json").read_text())
    assert config["fan_in_fan_out"] is True


@torch.no_grad()
def merge(model, saved):
    """As its authors define what `peft` has under these names; the factor of LoRA is alpha/r = 1."""
    for name, x in saved.items():
        path, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
        if kind == "A.weight":
            model.get_submodule(path).weight.add_(saved[name.replace("lora_A", "lora_B")] @ x)
        elif not kind:
            linear = model.get_submodule(path.removesuffix(".ia3_l"))
            linear.weight.mul_(x)
            if linear.bias is not None and x.shape[1] == 1:
                linear.bias.mul_(x.flatten())


def test_other_weights_beside_an_adapter_are_seen(llama, tmp_path, capsys):
    folder, words = tmp_path / "llama", [f"model={tmp_path}/llama", "adapter=lora", f"out={tmp_path}/run"]
    shutil.copytree(llama, folder)
    assert main(["train", *last_of(*SMALL, "steps=1", *words)]) == 0
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).double().save_pretrained(folder)
    assert main(["train", *last_of(*SMALL, "steps=2", *words)]) == 2
    assert "were trained beside other weights; put these back, or" in capsys.readouterr().err


SHORT = {  # and by which share ranks may be off: the format's step, and where the loss itself is short, two of them
    "autocast": (["dp=2", "zero_stage=3", "recompute=layers", "adapter=qlora"], 2**-8),
    "fp16": (["pp=2", "dp=2"], 2**-11),
    "pure_bf16": (["dp=2", "tp=2"], 2**-7),
}


@pytest.mark.parametrize("precision", SHORT)
def test_short_numbers_round_and_nothing_else(precision):
    layout, step = SHORT[precision]
    adapter = [word for word in layout if word.startswith("adapter")]
    asked = ["optimizer=sgd", "lr=0.5", *adapter]
    exact, short = losses(*asked), losses(*asked, f"precision={precision}")
    found = losses(*asked, f"precision={precision}", *layout)
    assert exact != pytest.approx(short, rel=1e-7) and short == pytest.approx(exact, rel=step)
    assert found == pytest.approx(short, rel=step)


def test_the_scale_of_fp16_goes_on_with_a_run(tmp_path):
    """A scaler of its own would begin to count its good steps anew."""
    words = ["precision=fp16", "optimizer=sgd", "lr=0.5", "batch=8"]
    run_in(tmp_path / "run", *words, "steps=2", "dp=2")
    asked = read_train(last_of(*SMALL, *words, f"out={tmp_path}/run"))
    trainer, _ = train_run.begun(asked, torch.device("cpu"))
    assert (trainer.optimizer.param_groups[0]["good_steps"], trainer.engine.ends.factor()) == (2, 2.0**16)


def weights_begun(words):
    """Bytes of this rank's weights, and of those that are trained, when a run begins."""
    run = read_train(words)
    trainer, _ = train_run.begun(run, torch.device("cpu"))
    held = trainer.local.parameters.values()
    return sum(p.nbytes for p in held), sum(p.nbytes for p in held if p.requires_grad)


@pytest.mark.parametrize(
    "words", [["adapter=lora", "tp=2"], ["adapter=ia3", "tp=4"], ["adapter=qlora", "pp=2"]], ids=str
)
def test_doctor_counts_the_weights_of_a_rank(words):
    run = read_train(words)
    counted = gpu_memory(asked_of(run).counted)
    assert (counted.weights, counted.gradients) in run_ranks(weights_begun, run.ranks, words)
