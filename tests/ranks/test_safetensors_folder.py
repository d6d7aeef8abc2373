"""Weights from and into the files of Hugging Face at any layout: bit by bit, and no rank ever holds the whole."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from sharded_models import TOKENS, VOCABULARY

from course_lib.config import TrainConfig
from course_lib.gauges.allocated import peak_bytes
from course_lib.models.bridge import to_transformers
from course_lib.models.decoder import Decoder
from course_lib.models.logits import Logits
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.table.meta import parameters_on_meta
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.training.safetensors_folder import load_safetensors, save_safetensors
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_sharding import torch_fully_shard
from course_lib.training.torch_techniques import torch_replicate, torch_tensor
from course_lib.training.trainer import Trainer
from tests.ranks.module_05.test_tensor_transformers import theirs
from tests.ranks.module_06.test_sharded_tensor import GPT, LLAMA

PROMPT = torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(3))
BESIDE = "config.json", "model.safetensors.index.json", "checksums.json"
PIPELINE = stages(make_schedule("1f1b", 2, 2))
OURS = {"llama": LLAMA, "gpt": GPT, "olmo": replace(LLAMA, norm="layer_unweighted"), "tied": replace(LLAMA, tied=True)}
OURS["even"] = replace(LLAMA, ffn_size=12, vocab_size=18)  # PyTorch cuts nothing else
FAMILIES = {  # of transformers
    "Llama": {"num_key_value_heads": 2},
    "Olmo": {"num_key_value_heads": 6, "tie_word_embeddings": True},
    "Olmo2": {"num_key_value_heads": 6},
}


def model_on_meta(name):
    if name in OURS:
        with torch.device("meta"):
            return Decoder(OURS[name])
    with parameters_on_meta():
        return Logits(theirs(name, **FAMILIES[name]))


def written(name, folder):
    """A checkpoint by transformers itself, in files of at most 2 kB, and the logits of its model."""
    torch.manual_seed(1)
    model = to_transformers(Decoder(OURS[name])) if name in OURS else theirs(name, **FAMILIES[name])
    model.save_pretrained(folder, max_shard_size="2KB")
    assert len([*folder.glob("*.safetensors")]) > 2
    return model(PROMPT).logits


def loaded(name, folder, degrees=None, apply=()):
    mesh = make_mesh(**degrees) if degrees else None
    init = partial(load_safetensors, folder=folder)
    return Trainer(model_on_meta(name), TrainConfig(), mesh=mesh, apply=apply, init=init)


def there_and_back(name, source, target, degrees, apply):
    """Load, write at once; what was loaded; and whether a step of training works."""
    trainer = loaded(name, source, degrees, apply)
    weights = {name: x.clone() for name, x in trainer.parameters().items()}
    save_safetensors(trainer, target, largest_bytes=3000)
    trainer.step(TOKENS.batch(0))
    return weights


LAYOUTS = [
    ("llama", {"dp": 2, "tp": 2}, (tensor(), fully_shard())),
    ("gpt", {"dp": 2, "tp": 2}, (tensor(), zero(2))),
    ("olmo", {"tp": 4}, (tensor(),)),
    ("tied", {"pp": 2, "dp": 2}, (PIPELINE, replicate())),
    ("llama", {"pp": 2, "tp": 2}, (tensor(), PIPELINE)),
    ("even", {"dp": 2, "tp": 2}, (torch_tensor(), torch_fully_shard())),
    ("tied", {"dp": 4}, (torch_replicate(),)),
    ("Llama", {"dp": 2, "tp": 2}, (tensor(), fully_shard())),
    ("Olmo", {"tp": 2, "dp": 2}, (tensor(), fully_shard(strategy="SHARD_GRAD_OP"))),
    ("Olmo2", {"dp": 4}, (torch_fully_shard(),)),
]


@pytest.mark.parametrize(("name", "degrees", "apply"), LAYOUTS)
def test_a_checkpoint_of_theirs_is_loaded_at_any_layout_and_given_back(tmp_path, name, degrees, apply):
    import transformers

    logits = written(name, tmp_path / "theirs")
    alone = loaded(name, tmp_path / "theirs")
    everyone = run_ranks(there_and_back, 4, name, tmp_path / "theirs", tmp_path / "ours", degrees, apply)
    for weights in everyone:
        assert weights.keys() == alone.parameters().keys()
        assert all(torch.equal(weights[key], x) for key, x in alone.parameters().items())
    index = json.loads((tmp_path / "ours" / BESIDE[1]).read_text())
    assert {*os.listdir(tmp_path / "ours")} == {*index["weight_map"].values(), *BESIDE}
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert torch.equal(again(PROMPT).logits, logits)


def held_while_loaded(folder, config):
    """Bytes at the worst moment, what the parts take, and how far the process grows in another reading."""
    made = []

    def make():
        with torch.device("meta"):
            model = Decoder(config)
        init = partial(load_safetensors, folder=folder)
        apply = tensor(), fully_shard()
        made.append(Trainer(model, TrainConfig(), mesh=make_mesh(dp=2, tp=2), apply=apply, init=init))

    most, (trainer,) = peak_bytes(make), made
    before = anonymous_bytes()
    load_safetensors(trainer, folder)
    return most, sum(x.nbytes for x in trainer.local.parameters.values()), anonymous_bytes() - before


def anonymous_bytes():
    """The process's own memory; what it maps of files, the system has for all."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_no_rank_holds_more_than_its_parts_and_one_tensor(tmp_path):
    """The gauge counts mapped files too, each once; the process's own memory shows that they take none of it."""
    config = replace(LLAMA, hidden_size=256, ffn_size=1024, n_layers=8, vocab_size=64)
    to_transformers(Decoder(config)).save_pretrained(tmp_path / "theirs", max_shard_size="4MB")
    tensors = [x.nbytes for x in Decoder(config).parameters()]
    files = sum(path.stat().st_size for path in (tmp_path / "theirs").glob("*.safetensors"))
    for most, parts, grown in run_ranks(held_while_loaded, 4, tmp_path / "theirs", config):
        assert parts < 0.26 * sum(tensors) < 0.26 * files
        assert parts < most <= parts + max(tensors) + files
        assert grown < 0.1 * parts


def says(attempt):
    with pytest.raises(ValueError) as error:
        attempt()
    return str(error.value)


def refused(folder):
    return says(lambda: loaded("llama", folder, {"tp": 2}, (tensor(),)))


def test_what_is_damaged_or_does_not_fit_is_refused_by_name_on_all_ranks(tmp_path):
    written("llama", folder := tmp_path / "theirs")
    assert says(lambda: loaded("llama", tmp_path)).startswith(f"load_safetensors: no {tmp_path}/model.safetensors; ")
    wider = partial(loaded, "wider", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OURS, "wider", replace(LLAMA, vocab_size=VOCABULARY + 1))
        patch.setitem(OURS, "deeper", replace(LLAMA, n_layers=4))
        patch.setitem(OURS, "shallower", replace(LLAMA, n_layers=2))
        assert f"{folder} also has model.layers.2.input_layernorm.weight, " in says(
            partial(loaded, "shallower", folder)
        )
        assert " has model.embed_tokens.weight of shape (17, 8), the model of (18, 8); a check" in says(wider)
        assert f"{folder} misses model.layers.3.input_layernorm.weight, " in says(partial(loaded, "deeper", folder))
    name = json.loads((folder / BESIDE[1]).read_text())["weight_map"]["model.norm.weight"]
    os.truncate(folder / name, (folder / name).stat().st_size - 1)
    texts = run_ranks(refused, 2, folder)
    assert len({*texts}) == 1 and texts[0].startswith(f"load_safetensors: {folder}/{name} is truncated or altered (")
    (folder / name).unlink()
    assert refused_alone(folder).startswith(f"load_safetensors: no {folder}/{name}; ")


def refused_alone(folder):
    return says(lambda: loaded("llama", folder))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_told_by_file_and_tensor(tmp_path, value):
    from safetensors.torch import load_file, save_file

    written("llama", tmp_path / "llama")
    index = json.loads((tmp_path / "llama" / BESIDE[1]).read_text())["weight_map"]
    name = "model.layers.0.mlp.down_proj.weight"
    file = tmp_path / "llama" / index[name]
    tensors = load_file(file)
    tensors[name][0, -1] = value
    save_file(tensors, file, {"format": "pt"})
    assert refused_alone(tmp_path / "llama").startswith(f"load_safetensors: {name} in {file} has infinities or NaN; ")
    said = run_ranks(refused, 2, tmp_path / "llama")
    assert said[0] == said[1] and f"{name} in {file} has infinities or NaN" in said[0]


def fail_to_write(folder):
    """The last rank's disk is full; afterwards it is not."""
    trainer = Trainer(Decoder(LLAMA), TrainConfig(), mesh=make_mesh(tp=2), apply=(tensor(),))
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr("numpy.memmap", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            save_safetensors(trainer, folder)
    there = folder.exists()
    save_safetensors(trainer, folder)
    return str(error.value), there, says(lambda: save_safetensors(trainer, folder))


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_folder_is_whole_or_not_there(tmp_path):
    first, second = run_ranks(fail_to_write, 2, tmp_path / "ours")
    assert first == second and not first[1]
    assert first[2] == f"save_safetensors: {tmp_path}/ours is there; weights are written over none; name another folder"
    assert {*os.listdir(tmp_path / "ours")} == {"config.json", "model.safetensors", "checksums.json"}
    content = bytearray((path := tmp_path / "ours" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    altered = says(lambda: load_safetensors(Trainer(Decoder(LLAMA), TrainConfig()), tmp_path / "ours"))
    assert altered.startswith(f"load_safetensors: {path} was altered: its checksum is another; ")
