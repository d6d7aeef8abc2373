"""A folder's weights are judged before anything is read: what `train` refuses, `doctor` refuses for the same reason."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from course_lib.cli.main import main
from course_lib.models.bridge import to_transformers
from course_lib.models.decoder import Decoder
from course_lib.training import folder_check
from course_lib.training.folder_check import FILE, INDEX, check_weights
from tests.unit.module_01.test_bridge import LLAMA

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
ASKED = ("steps=1", "batch=2", "sequence=8", "lr=0.1")


def tensors_of(folder, **more):
    """Write config.json of a small Llama; the tensors that would be in the files."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | more, architectures=["LlamaForCausalLM"]))
    model.config.save_pretrained(folder)
    return {name: x.clone().contiguous() for name, x in model.state_dict().items()}


def put(folder, tensors, file=FILE):
    save_file(tensors, folder / file, metadata={"format": "pt"})


def index(folder, where, name=INDEX):
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": where}))


def shards(folder, tensors, stem="model"):
    """In two files; by tensor its file."""
    names, where = list(tensors), {}
    for number, part in enumerate((names[:10], names[10:]), 1):
        file = f"{stem}-{number:05}-of-00002.safetensors"
        put(folder, {name: tensors[name] for name in part}, file)
        where |= dict.fromkeys(part, file)
    return where


def good(folder):
    put(folder, tensors_of(folder))


def in_two_files(folder):
    index(folder, shards(folder, tensors_of(folder)))


def half(folder):
    put(folder, {name: x.bfloat16() for name, x in tensors_of(folder).items()})


def tied(folder):
    tensors = tensors_of(folder, tie_word_embeddings=True)
    del tensors[HEAD]
    put(folder, tensors)


def tied_twice_the_same(folder):
    put(folder, tensors_of(folder, tie_word_embeddings=True))


def without_weights(folder):
    tensors_of(folder)


def null_fields(folder):
    config = transformers.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]).to_dict()
    config |= dict.fromkeys(("num_key_value_heads", "head_dim", "rope_scaling", "torch_dtype", "pad_token_id"))
    del config["rope_parameters"]
    put(folder, tensors_of(folder, num_key_value_heads=4))
    (folder / "config.json").write_text(json.dumps(config))


def odd_sizes(folder):
    put(folder, tensors_of(folder, hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=8))


def old_angles(folder):
    put(folder, tensors_of(folder) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})


def head_less(folder):
    tensors = tensors_of(folder)
    del tensors[HEAD]
    put(folder, tensors)


def shard_less(folder):
    in_two_files(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def old_index(folder):
    where = shards(folder, tensors_of(folder))
    index(folder, {name: file.replace("00002.", "00004.") for name, file in where.items()})


def index_of_other_shards(folder):
    where = shards(folder, tensors_of(folder))
    first, last, *_ = sorted({*where.values()})
    index(folder, dict.fromkeys(where, first) | dict.fromkeys([HEAD], last))


def index_of_nothing(folder):
    in_two_files(folder)
    (folder / INDEX).write_text('{"weight_map": {"lm_head.weight": null}}')


def index_outside(folder):
    in_two_files(folder)
    index(folder, dict.fromkeys(tensors_of(folder), "../model.safetensors"))


def twice(folder):
    in_two_files(folder)
    good(folder)


def compiled(folder):
    put(folder, {f"_orig_mod.{name}": x for name, x in tensors_of(folder).items()})


def wrapped(folder):
    put(folder, {f"module.{name}": x for name, x in tensors_of(folder).items()})


def wrapped_twice(folder):
    put(folder, {f"_orig_mod.module.{name}": x for name, x in tensors_of(folder).items()})


def inside_another(folder):
    put(folder, {f"transformer.{name}": x for name, x in tensors_of(folder).items()})


def base_model(folder):
    put(folder, {name.removeprefix("model."): x for name, x in tensors_of(folder).items() if name != HEAD})


def tied_but_two(folder):
    tensors = tensors_of(folder, tie_word_embeddings=True)
    put(folder, tensors | {HEAD: tensors[HEAD] + 1})


def longer_tables(folder):
    tensors = tensors_of(folder)
    more = {name: torch.cat([tensors[name], torch.zeros(2, 32)]) for name in (HEAD, TABLE)}
    put(folder, tensors | more)


def consolidated(folder):
    index(folder, shards(folder, tensors_of(folder), "consolidated"), "consolidated.safetensors.index.json")


def other_name(folder):
    put(folder, tensors_of(folder), "weights.safetensors")


def adapter(folder):
    tensors_of(folder)
    put(
        folder,
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(8, 32)},
        "adapter_model.safetensors",
    )


def adapter_alone(folder):
    adapter(folder)
    (folder / "config.json").unlink()


def pickled(folder):
    torch.save(tensors_of(folder), folder / "pytorch_model.bin")


def cut_short(folder):
    good(folder)
    os.truncate(folder / FILE, (folder / FILE).stat().st_size - 1)


def no_file_at_all(folder):
    tensors_of(folder)
    (folder / FILE).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0")


def quantised(folder):
    tensors = tensors_of(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    put(folder, tensors | {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1)})


def whole_numbers(folder):
    tensors = tensors_of(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    put(folder, tensors | {name: tensors[name].to(torch.int8)})


TAKEN = (good, in_two_files, half, tied, tied_twice_the_same, without_weights, null_fields, odd_sizes, old_angles)
REFUSED = {  # and what is said
    head_less: r"misses lm_head.weight; a checkpoint has just the model's tensors; give config.json tie_word_emb",
    shard_less: r"no \S+/model-00002-of-00002.safetensors; the index names it; copy the file too",
    old_index: r"no \S+/model-00001-of-00004.safetensors; the index names it, and not model-00001-of-00002.safetensors",
    index_of_other_shards: r"has no model\.\S+; model.safetensors.index.json says that it has",
    index_of_nothing: r"index.json is no index; an index has a table weight_map",
    index_outside: r"index.json is no index; an index has a table weight_map",
    twice: r"has its weights twice; `from_pretrained` reads model.safetensors, and model.safetensors.index.json names",
    compiled: r"its names begin with '_orig_mod.', which torch.compile put there, and the model's do not; save the mod",
    wrapped: r"its names begin with 'module.', which DistributedDataParallel put there",
    wrapped_twice: r"its names begin with '_orig_mod.module.', which torch.compile put there",
    inside_another: r"its names begin with 'transformer.', and the model's do not",
    base_model: r"the model's names begin with 'model.', and these do not, and lm_head.weight is not there at all",
    tied_but_two: r"config.json ties lm_head.weight to model.embed_tokens.weight, and the files have two different",
    longer_tables: r"has model.embed_tokens.weight of shape \(258, 32\), the model of \(256, 32\)",
    consolidated: r"no \S+/model.safetensors; weights lie in .* here lie consolidated-00001-of-00002.safetensors, ",
    other_name: r"no \S+/model.safetensors; .*; rename weights.safetensors, if it has all of them",
    adapter: r"no \S+/model.safetensors; .* merge it into its base \(`merge_and_unload`\)",
    adapter_alone: r"it has no config.json; name a folder that `save_pretrained` wrote",
    pickled: r"its weights are in .bin alone; save it once more",
    cut_short: r"model.safetensors is truncated or altered \(",
    no_file_at_all: r"model.safetensors is truncated or altered \(",
    quantised: r"up_proj.weight_scale_inv; it is quantised, and trained are floating numbers; save it dequantised",
    whole_numbers: r"has model.layers.0.mlp.up_proj.weight in I8; trained are numbers in F64, F32, F16, BF16",
}


def asked(command, folder, capsys):
    """The exit status, and everything that was said."""
    (folder.parent / "text.txt").write_text("a text of one's own " * 20)
    status = main([command, f"model={folder}", f"text={folder.parent}/text.txt", *ASKED])
    return status, "".join(capsys.readouterr())


@pytest.mark.parametrize("make", [*TAKEN, *REFUSED], ids=lambda make: make.__name__)
def test_doctor_s_verdict_is_that_of_train_for_the_same_reason(make, tmp_path, capsys):
    folder = tmp_path / "theirs"
    folder.mkdir()
    make(folder)
    (doctors, verdict), (trained, said) = (asked(command, folder, capsys) for command in ("doctor", "train"))
    assert bool(doctors) == bool(trained) == (make in REFUSED), f"{verdict}\n{said}"
    if make in REFUSED:
        assert re.search(REFUSED[make], said) and said.count("\n") == 1
        assert said.strip() in verdict
        assert "would not run" in verdict or doctors == 2
    else:
        assert "\nit would run\n" in verdict and "loss" in said


@pytest.mark.parametrize("make", [compiled, tied_but_two, head_less], ids=lambda make: make.__name__)
def test_the_way_out_is_one(make, tmp_path, capsys):
    folder = tmp_path / "theirs"
    folder.mkdir()
    make(folder)
    tensors, config = load_file(folder / FILE), json.loads((folder / "config.json").read_text())
    if make is compiled:
        put(folder, {name.removeprefix("_orig_mod."): x for name, x in tensors.items()})
    elif make is tied_but_two:
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    else:
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert asked("doctor", folder, capsys)[0] == asked("train", folder, capsys)[0] == 0


def test_no_numbers_are_read(tmp_path, monkeypatch):
    """But of two tables that are one in the model, and there no more than it takes to see that they differ."""
    good(tmp_path)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    read = []
    monkeypatch.setattr(folder_check, "_same", lambda one, other: read.append(one) or torch.equal(one, other))
    check_weights(tmp_path, model)
    assert read == []
    monkeypatch.setattr(folder_check, "_COMPARED", 64)
    tied_model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"tie_word_embeddings": True}))
    with pytest.raises(ValueError, match="ties lm_head.weight to model.embed_tokens.weight"):
        check_weights(tmp_path, tied_model)
    assert [x.numel() for x in read] == [64]


@pytest.mark.parametrize("is_tied", [False, True])
def test_our_decoder_is_compared_by_their_names(tmp_path, is_tied):
    model = Decoder(replace(LLAMA, tied=is_tied))
    to_transformers(model).save_pretrained(tmp_path)
    check_weights(tmp_path, model)
    tensors = load_file(tmp_path / FILE)
    put(tmp_path, tensors | {HEAD: torch.zeros_like(tensors[TABLE]) - 1})
    if is_tied:
        with pytest.raises(ValueError, match="ties lm_head.weight"):
            check_weights(tmp_path, model)
    else:
        check_weights(tmp_path, model)
