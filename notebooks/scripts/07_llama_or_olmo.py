"""Fine-tune a Llama or OLMo: torchrun --nproc-per-node 4 07_llama_or_olmo.py [MODEL_FOLDER TEXT]"""

import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor.parallel as tp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

TP, STEPS, SAVE_EVERY, BATCH, ACCUMULATE, LENGTH, RATE, WARM_UP = 2, 8, 3, 8, 2, 64, 3e-3, 2
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 256}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def distribute(model: nn.Module, mesh: dist.DeviceMesh) -> None:
    # Between blocks a rank has some positions; a block gathers all of them, and cuts features instead.
    cut, whole = Shard(1), Replicate()
    leave = {"output_layouts": cut, "use_local_output": False}
    states = {"input_kwarg_layouts": {"hidden_states": cut}}
    states |= {"desired_input_kwarg_layouts": {"hidden_states": whole}}
    plan = {name: tp.SequenceParallel() for name, _ in model.named_modules() if name.endswith("norm")}
    heads = tp.SequenceParallel(sequence_dim=2, use_local_output=True)  # OLMo2 norms queries and keys
    plan |= {name: heads for name in plan if name.endswith(("q_norm", "k_norm"))}
    plan["model.layers.*.self_attn"] = tp.PrepareModuleInput(**states)
    gather = tp.PrepareModuleInput(input_layouts=(cut,), desired_input_layouts=(whole,))
    plan["model.layers.*.mlp"] = gather
    for name in ("self_attn.[qkv]", "mlp.gate", "mlp.up"):
        plan[f"model.layers.*.{name}_proj"] = tp.ColwiseParallel()
    for name in ("self_attn.o", "mlp.down"):
        plan[f"model.layers.*.{name}_proj"] = tp.RowwiseParallel(**leave)
    plan["model.embed_tokens"] = tp.RowwiseParallel(input_layouts=whole, **leave)
    scores = {"output_layouts": Shard(-1), "use_local_output": False}
    plan["lm_head"] = tp.ColwiseParallel(input_layouts=cut, **scores)
    tp.parallelize_module(model, mesh["tp"], plan).tie_weights()
    # Along dp each layer is a unit; units compute in bfloat16, and keep and add up numbers in float32.
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)


def main() -> None:
    # Ranks that share matrices talk most: they are neighbours. Each has a GPU if there are enough.
    ranks, near = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device, degree = "cuda" if torch.cuda.device_count() >= near else "cpu", min(TP, near)
    mesh = dist.init_device_mesh(device, (ranks // degree, degree), mesh_dim_names=("dp", "tp"))
    mesh._flatten("all")  # so that the gradients' norm is added up over all ranks at once

    # Without weights all ranks draw the same ones; with a folder of them each reads its own pieces.
    folder = Path(sys.argv[1] if sys.argv[1:] else "none")
    text = Path(sys.argv[2] if sys.argv[2:] else __file__)
    known = folder.exists()
    config = AutoConfig.from_pretrained(folder) if known else LlamaConfig(**TINY, **HEADS)
    torch.manual_seed(0)
    with torch.device("meta" if (stored := any(folder.glob("*.safetensors"))) else device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    distribute(model, mesh)
    if stored:
        model.to_empty(device=device)
        model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)  # in no file
        reader = dcp.HuggingFaceStorageReader(str(folder))
        dcp.load(dict(model.named_parameters()), storage_reader=reader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)

    # A stopped run goes on from the last checkpoint that is whole: its metadata is written last.
    def state() -> dict:
        names = "model_state_dict", "optim_state_dict"
        return dict(zip(names, get_state_dict(model, optimizer), strict=True))

    if done := max((int(path.parent.name) for path in Path("checkpoints").glob("*/.metadata")), default=0):
        dcp.load(saved := state(), checkpoint_id=f"checkpoints/{done}")
        set_state_dict(model, optimizer, **saved)

    # A step's rows follow from its number; ranks along dp take different ones, those along tp the same.
    theirs = (folder / "tokenizer.json").exists()
    read = AutoTokenizer.from_pretrained(folder).encode if theirs else str.encode
    tokens, dp = torch.tensor([*read(text.read_text())]), mesh["dp"]
    assert BATCH % (dp.size() * ACCUMULATE) == 0, "all micro-batches of all ranks have equally many rows"
    assert ACCUMULATE > 1, "else the norms' gradients are added along tp in bfloat16 (pytorch#190626)"
    for step in range(done, STEPS):
        draw = torch.Generator().manual_seed(step)
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=draw)
        rows = torch.stack([tokens[start : start + LENGTH + 1] for start in starts]).to(device)
        total = torch.zeros((), device=device)
        for number, mine in enumerate(rows.chunk(dp.size())[dp.get_local_rank()].chunk(ACCUMULATE)):
            model.set_requires_gradient_sync(number == ACCUMULATE - 1)
            with tp.loss_parallel():  # of logits that are cut, and so is its backward
                logits = model(mine[:, :-1], use_cache=False).logits.float().flatten(0, 1)
                loss = nn.functional.cross_entropy(logits, mine[:, 1:].flatten()) / ACCUMULATE
                loss.backward()
            total += loss.detach().to_local() / dp.size()
        dist.all_reduce(total, group=dp.get_group())

        # The rate rises, then follows a cosine; the gradients of all ranks are clipped as one.
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).full_tensor()
        cosine = (1 + math.cos(math.pi * step / STEPS)) / 2
        optimizer.param_groups[0]["lr"] = RATE * min((step + 1) / WARM_UP, cosine)
        optimizer.step()
        optimizer.zero_grad()
        if mesh.get_rank() == 0:
            print(f"step {step + 1}: loss {total:.6f}, norm {norm:.6f}", flush=True)
        if (step + 1) % SAVE_EVERY == 0:
            dcp.save(state(), checkpoint_id=f"checkpoints/{step + 1}")

    # The end is a folder as the one that it began with.
    writer = dcp.HuggingFaceStorageWriter("trained", save_distributed=True, enable_consolidation=True)
    dcp.save(dict(model.named_parameters()), storage_writer=writer)
    config.save_pretrained("trained")
    dist.barrier()  # who leaves first would cut the connections of those who still work
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads still live, and one that freed a DTensor now would abort the process


if __name__ == "__main__":
    main()
