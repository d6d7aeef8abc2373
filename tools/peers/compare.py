"""Compare ours to theirs on the same numbers; runs in the peers' environment. The last line is JSON: a list of rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import bitsandbytes
import bitsandbytes.functional as theirs
import peft
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.optim import quant_utils
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.savers import adam8bit, codebook
from course_lib.savers.absmax import absmax_int8
from course_lib.savers.adapted import merge_adapters
from course_lib.savers.dynamic_levels import dynamic_levels
from course_lib.savers.ia3 import IA3Linear, add_ia3
from course_lib.savers.lora import LoRALinear, add_lora
from course_lib.savers.nf4 import encode_nf4, nf4_levels
from course_lib.savers.quantised_linear import NF4Linear
from course_lib.savers.targets import QUERIES_AND_VALUES

STEPS = 5
SMALL = ModelConfig(
    name="small", hidden_size=32, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=88, vocab_size=64, tied=False
)
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Row = dict[str, Any]


def row(library: str, what: str, off: float, says: str, limit: float = 0.0) -> Row:
    """One comparison; it is as it should be if `off` is within its limit."""
    return {"library": library, "what": what, "off": float(off), "limit": limit, "says": says}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def tables() -> Iterator[Row]:
    """The levels that codes stand for."""
    off = (nf4_levels() - theirs.get_4bit_type("nf4", device="cpu")).abs().max()
    yield row("bitsandbytes", "the 16 levels of NF4", off, "ours are computed from quantiles", 2e-7)
    for library, make in (
        ("bitsandbytes", theirs.create_dynamic_map),
        ("torchao", quant_utils.create_dynamic_map),
    ):
        for signed in (True, False):
            off = (dynamic_levels(signed=signed) - torch.as_tensor(make(signed=signed))).abs().max()
            yield row(library, f"the 256 dynamic levels, {'signed' if signed else 'unsigned'}", off, "")


def codes() -> Iterator[Row]:
    """Which level a number becomes."""
    numbers, levels = drawn(2000 * 256), dynamic_levels(signed=True)
    ours, _ = codebook.encode(numbers, levels, 256)
    scaled, _ = quant_utils.scale_tensor(numbers, 256)
    off = (quant_utils.quantize_8bit_with_qmap(scaled, levels).flatten() != ours).float().mean()
    yield row("torchao", "codes of 8 bits, share that differs", off, "a number exactly halfway", 1e-5)
    found, _ = theirs.quantize_blockwise(numbers, blocksize=256)
    says = "numbers halfway between two levels, within 2e-5: it looks for them in a coarser table first"
    yield row("bitsandbytes", "codes of 8 bits, share that differs", (found != ours).float().mean(), says, 2e-3)

    weight = drawn(384, 256) * 0.02
    for double in (False, True):
        packed, state = theirs.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=double)
        found = encode_nf4(weight, double=double)
        kind = "NF4, double" if double else "NF4"
        off = (packed.flatten() != found.codes).float().mean()
        yield row("bitsandbytes", f"{kind}: codes of weights, share that differs", off, f"{found.bits:.4f} bits")
        off = relative(found.decode(), theirs.dequantize_4bit(packed, state))
        says = "a few scales become the neighbouring level" if double else "the levels' last bit"
        yield row("bitsandbytes", f"{kind}: weights", off, says, 1e-3 if double else 1e-6)

    steps, scales, _ = theirs.int8_vectorwise_quant(weight.half())
    ours8 = absmax_int8(weight.half(), "row")
    off = (steps != ours8.steps).float().mean()
    yield row("bitsandbytes", "int8 by rows, share of steps that differs", off, "it multiplies by 127/max", 1e-3)
    linear = nn.Sequential(plain(weight))
    quantize_(linear, Int8WeightOnlyConfig())
    off = relative(linear[0].weight.dequantize(), weight) / relative(absmax_int8(weight, "row").decode(), weight) - 1
    says = "how much larger its error is: its scale is max/127.5, since it uses -128 too"
    yield row("torchao", "int8 by rows, error", off, says, 0.05)


def plain(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.clone()
    return linear


def quantised_linear() -> Iterator[Row]:
    """A frozen map in codes, forward and backward."""
    linear = plain(drawn(384, 256) * 0.02)
    ours = NF4Linear(linear)
    other = bitsandbytes.nn.Linear4bit(
        256, 384, bias=False, compute_dtype=torch.float32, quant_type="nf4", compress_statistics=True
    )
    other.load_state_dict({"weight": linear.weight.detach()})
    other = other.to("cpu")
    found = []
    for layer in (ours, other):
        x = drawn(8, 256).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        found.append((y.detach(), x.grad))
    for what, mine, its in zip(("output", "gradient of the input"), *found, strict=True):
        yield row("bitsandbytes", f"Linear4bit: {what}", relative(mine, its), "with the few scales from above", 1e-3)


def optimizers() -> Iterator[Row]:
    """AdamW in 8 bits, with our codes and with theirs."""

    def train(make: Callable[..., torch.optim.Optimizer]) -> Tensor:
        parameter = nn.Parameter(drawn(128, 96))
        optimizer = make([parameter], lr=1e-2, weight_decay=1e-2)
        generator = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            parameter.grad = torch.randn(128, 96, generator=generator)
            optimizer.step()
        return parameter.detach()

    def their_codes(x: Tensor, levels: Tensor, block: int) -> tuple[Tensor, Tensor]:
        found, state = theirs.quantize_blockwise(x, code=levels, blocksize=block)
        return found.flatten(), state.absmax

    other = train(bitsandbytes.optim.AdamW8bit)
    way = other - drawn(128, 96)
    off = (train(adam8bit.AdamW8bit) - other).norm() / way.norm()
    yield row("bitsandbytes", f"AdamW8bit, {STEPS} steps: share of the way", off, "codes halfway, from above", 1e-2)
    with patch.object(adam8bit, "encode", their_codes):
        off = (train(adam8bit.AdamW8bit) - other).abs().max()
    yield row("bitsandbytes", f"AdamW8bit, {STEPS} steps, with its codes", off, "")


def adapters() -> Iterator[Row]:
    """LoRA and (IA)^3 in float64: outputs and trained matrices after steps of AdamW."""
    torch.set_default_dtype(torch.float64)
    lora = {"r": 4, "lora_alpha": 16, "bias": "none"}
    cases = {
        "LoRA": (peft.LoraConfig(target_modules=[*NAMES], **lora), lambda model: add_lora(model, 4, 16.0)),
        "LoRA of queries and values, alpha/sqrt(r)": (
            peft.LoraConfig(target_modules=["q_proj", "v_proj"], use_rslora=True, **lora),
            lambda model: add_lora(model, 4, 16.0, scaling="root", targets=QUERIES_AND_VALUES),
        ),
        "(IA)^3": (
            peft.IA3Config(
                target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type=None
            ),
            add_ia3,
        ),
    }
    tokens = torch.arange(96).view(4, 24) % 64
    for name, (config, adapt) in cases.items():
        torch.manual_seed(0)
        base = Decoder(SMALL)
        ours = adapt(copy.deepcopy(base))
        other = peft.inject_adapter_in_model(config, base)
        take_over(other, ours)
        for model in (ours, other):
            fine_tune(model, tokens)
        off = (ours(tokens) - other(tokens)).abs().max()
        yield row("peft", f"{name}, {STEPS} steps of AdamW in float64: output", off, "")
        trained = [[p.detach() for p in model.parameters() if p.requires_grad] for model in (ours, other)]
        off = max((a.flatten() - b.flatten()).abs().max() for a, b in zip(*trained, strict=True))
        yield row("peft", f"{name}: what was trained", off, f"{sum(p.numel() for p in trained[0]):,} numbers")
        merged = merge_adapters(ours)(tokens)
        for module in [*other.modules()]:
            if hasattr(module, "merge"):
                module.merge()
        yield row("peft", f"{name}: output when merged", (merged - other(tokens)).abs().max(), "", 1e-14)


def take_over(source: nn.Module, target: nn.Module) -> None:
    """Begin with the same matrix A, which is drawn."""
    modules = dict(source.named_modules())
    for name, module in target.named_modules():
        if isinstance(module, LoRALinear):
            module.A.data.copy_(modules[name].lora_A["default"].weight.data)
        elif isinstance(module, IA3Linear):
            assert (modules[name].ia3_l["default"] == 1).all()


def fine_tune(model: nn.Module, tokens: Tensor) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([one for part in (tables, codes, quantised_linear, optimizers, adapters) for one in part()]))
