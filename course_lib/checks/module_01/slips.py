"""01.10: four printed slips, each with a wrong number or one thing left unsaid."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise, Slips
from course_lib.checks.module_01.printed_shapes import HEADS, WIDTH, Shape, printed_shapes
from course_lib.config import ModelConfig, ParallelConfig, load_model, load_preset
from course_lib.costs.model.flops import chinchilla_tokens
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.published.explorer import explorer_parameters, explorer_state_bytes
from course_lib.costs.published.runs import LLAMA_TOKENS
from course_lib.units import GB, GiB

LLAMA, RELEASED, FILE = (load_model(name) for name in ("llama3_1_405b", "grok_1", "grok_1_explorer"))
P = explorer_parameters(LLAMA)  # of the matrices alone, as the tool counts


class Printed(NamedTuple):
    """Shapes of models; GPUs, and the states of one as the tool prints them, not and fully sharded, to two digits."""

    shapes: tuple[Shape, ...]
    gpus: int
    unsharded: float
    sharded: float


def given(seed: int) -> Printed:
    """GPT-3's shapes and 8 GPUs unless an instructor asks for more."""
    gpus = 8 if seed == 0 else random.Random(seed).choice((16, 32, 64, 128))
    parallel = ParallelConfig(dp=gpus)
    printed = (explorer_state_bytes(LLAMA, parallel, kind) / GiB for kind in ("NO_OP", "FULLY_SHARD"))
    return Printed(printed_shapes(seed), gpus, *(round(gib, 2) for gib in printed))


def _width(row: Shape, more: int) -> int:
    """Of its heads and so many more."""
    return (row.heads + more) * row.head_size


def _experts(c: ModelConfig) -> int:
    """Parameters of all feed-forward blocks."""
    return c.n_layers * c.n_experts * (3 if c.gated_ffn else 2) * c.hidden_size * c.ffn_size


def _printed(name: str) -> float:
    """Parameters as the paper rounds them."""
    return load_preset(name).printed_parameters or math.nan


def _ratio(name: str) -> float:
    """Tokens per parameter that a LLaMA was trained on."""
    return LLAMA_TOKENS[name] / _printed(name)


def _counted_amiss(c: ModelConfig) -> Slips:
    """What a count of either model may have too often or too seldom."""
    count, table = explorer_parameters(c), c.vocab_size * c.hidden_size
    return {
        "a tied table is stored once": count + table,
        f"that has one layer; there are {c.n_layers}": (count - table) / c.n_layers + table,
        "each layer has 8 experts, all of which must be stored": count - _experts(c) * 7 / 8,
    }


MISSING = _experts(RELEASED) - _experts(FILE)
KEYS_AND_VALUES = 2 * RELEASED.n_layers * RELEASED.hidden_size * (RELEASED.hidden_size - RELEASED.kv_size)
HEADING = "the heading says GB, the tool divides by 2**30: GiB"
PRINTED_NUMBER = "that is the printed number, and it is in GiB"
ROUNDED = "rounded too far: all numbers here are taken to 0.1 %"

ask = partial(Ask, tolerance=0.001)
count = partial(ask, unit="parameters")

_SLIPS = NumberExercise(
    key="01.10",
    title="find the wrong number: four printed slips",
    given=given,
    levels={
        "shapes": Group(2, (
            Ask("second_heads", "heads", lambda g: g.shapes[HEADS].width // g.shapes[HEADS].head_size, {
                "the printed number: so many of that size are wider than the row": lambda g: g.shapes[HEADS].heads,
            }),
            Ask("fourth_width", "numbers", lambda g: _width(g.shapes[WIDTH], 0), {
                "the printed number: do that many heads of that size make it?": lambda g: g.shapes[WIDTH].width,
                "that is one head more than the table has": lambda g: _width(g.shapes[WIDTH], 1),
            }),
        ), "right. GPT-3's paper prints 24 heads for XL and a width of 5140 for 13B, which nobody can build"),
        "row": Group(4, (
            ask("unsharded_bytes", "bytes", 18, {HEADING: lambda g: g.unsharded * GB / P}),
            ask("sharded_bytes", "bytes", 16, {
                "so it should be, if all were divided; compute it from the printed row": 18,
                HEADING: lambda g: g.sharded * GB * g.gpus / P,
                "that is one GPU's part: all GPUs hold the model together": lambda g: g.sharded * GiB / P,
            }),
            ask("row_if_all_divided", "GiB", lambda g: 18 * P / g.gpus / GiB, {
                "that is the printed row: the 16-bit weights are not in it": lambda g: g.sharded,
                "that is the NO_OP row: nothing of it is divided yet": lambda g: g.unsharded,
                "taken as GB; the printed row is in GiB already": lambda g: g.unsharded / g.gpus * GB / GiB,
                "two bytes are missing for each parameter, not four": lambda g: 20 * P / g.gpus / GiB,
                "that is in GB; GiB is asked, as the tool divides": lambda g: 18 * P / g.gpus / GB,
            }),
            ask("row_in_gb", "GB", lambda g: 16 * P / g.gpus / GB, {
                PRINTED_NUMBER: lambda g: g.sharded,
                "turned round: a GiB is more than a GB, so there are more GB": lambda g: g.sharded * GB / GiB,
                "that is all that NO_OP counts; the printed row has less": lambda g: g.unsharded * GiB / g.gpus / GB,
            }),
        ), "right. 18 bytes are 16-bit weights 2, fp32 gradients 4, fp32 weights and moments 12. FSDP2 shards what "
           "is fp32, 16 bytes, and makes 16-bit weights for one block at a time; if a copy of them lasts, 18 are "
           "shared. Both are true; the row does not say which it means, and says GB for GiB"),
        "model": Group(3, (
            count("file_parameters", answer=explorer_parameters(FILE), slips={
                "the file says two matrices in a block, not three": explorer_parameters(FILE) + _experts(FILE) / 2,
                **_counted_amiss(FILE),
            }),
            count("released_parameters", answer=model_parameters(RELEASED), slips={
                "a block of the released model has three matrices":
                    explorer_parameters(RELEASED) - _experts(RELEASED) / 3,
                **_counted_amiss(RELEASED),
                "keys and values have 8 heads there, not 48": explorer_parameters(RELEASED) + KEYS_AND_VALUES,
            }),
            count("missing_in_blocks", answer=MISSING, slips={
                f"that is one layer; there are {RELEASED.n_layers}": MISSING / RELEASED.n_layers,
                f"that is one expert; each layer has {RELEASED.n_experts}": MISSING / RELEASED.n_experts,
                "the file has too few: give how many, without a sign": -MISSING,
                "that is the whole difference; only the feed-forward blocks are asked":
                    explorer_parameters(RELEASED) - explorer_parameters(FILE),
            }),
        ), "right. The file describes a model of a quarter of Grok-1's size: its numbers are true, of another model"),
        "law": Group(2, (
            ask("ratio_smallest", "tokens", _ratio("llama_7b"), {
                "that is the law; divide what it was trained on by its parameters": 20,
                ROUNDED: round(_ratio("llama_7b")),
            }),
            ask("ratio_largest", "tokens", _ratio("llama_65b"), {
                "that is the law, and this one is near it, but not on it": 20,
                ROUNDED: (round(_ratio("llama_65b")), round(_ratio("llama_65b"), 1)),
            }),
            ask("law_smallest", "tokens", chinchilla_tokens(_printed("llama_7b")), {
                "that is what it was trained on": LLAMA_TOKENS["llama_7b"],
                "in trillions? The number itself is asked": chinchilla_tokens(_printed("llama_7b")) / 1e12,
            }),
        ), "right. Only the largest is near the law; the small ones were trained far beyond it, to be cheap in use"),
    },
    hints=(
        "Shapes: width = heads x head size. All three are printed; where they disagree, the neighbours in the table "
        "and the parameter count tell which is wrong.",
        "Row: bytes per parameter = printed number x unit / P. Which unit makes the first row a whole number?",
        "The second row is one GPU's share. Times the GPUs, it is a whole number of bytes per parameter again, "
        "but not the first one's. What has that many bytes?",
        "Model: a layer has attention, 2 H H + 2 H K, and as many blocks as experts, each of 2 or 3 matrices H x F. "
        "K is kv heads x head size. A tied model has one table V x H.",
        "Law: tokens / parameters. B is 10**9, T is 10**12. Which of the four is near 20?",
    ),
)  # fmt: skip
