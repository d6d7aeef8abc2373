"""01.10: four printed slips, each with a wrong number or one thing left unsaid."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from course_lib.checks.kit.numbers import Given, NumberExercise, Question
from course_lib.config import ModelConfig, ParallelConfig, load_model, load_preset
from course_lib.costs.model.flops import chinchilla_tokens
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.published.explorer import explorer_parameters, explorer_state_bytes
from course_lib.costs.published.runs import LLAMA_TOKENS
from course_lib.units import GB, GiB

LLAMA, RELEASED, FILE = (load_model(name) for name in ("llama3_1_405b", "grok_1", "grok_1_explorer"))
XL, LARGE = (load_preset(name) for name in ("gpt3_xl", "gpt3_13b"))
P = explorer_parameters(LLAMA)  # of the matrices alone, as the tool counts


def rows(gpus: float) -> tuple[float, float]:
    """States per GPU as the tool prints them, not sharded and fully sharded, rounded to two digits."""
    parallel = ParallelConfig(dp=int(gpus))
    unsharded, sharded = (explorer_state_bytes(LLAMA, parallel, kind) for kind in ("NO_OP", "FULLY_SHARD"))
    return round(unsharded / GiB, 2), round(sharded / GiB, 2)


def given(seed: int) -> Given:
    """The number of GPUs, and the two rows for it."""
    gpus = 8 if seed == 0 else random.Random(seed).choice((16, 32, 64, 128))
    return (gpus, *rows(gpus))


def _experts(c: ModelConfig) -> int:
    """Parameters of all feed-forward blocks."""
    return c.n_layers * c.n_experts * (3 if c.gated_ffn else 2) * c.hidden_size * c.ffn_size


def _printed(name: str) -> float:
    """Parameters as the paper rounds them."""
    return load_preset(name).printed_parameters or math.nan


def _ratio(name: str) -> float:
    """Tokens per parameter that a LLaMA was trained on."""
    return LLAMA_TOKENS[name] / _printed(name)


def _one_layer(c: ModelConfig) -> float:
    """A count that leaves out times the layers."""
    table = c.vocab_size * c.hidden_size
    return (explorer_parameters(c) - table) / c.n_layers + table


def _counted_amiss(c: ModelConfig) -> tuple[tuple[Callable[..., float], str], ...]:
    """What a count of either model may have too often or too seldom."""
    return (
        (lambda *rows: explorer_parameters(c) + c.vocab_size * c.hidden_size, "a tied table is stored once"),
        (lambda *rows: _one_layer(c), f"that has one layer; there are {c.n_layers}"),
        (
            lambda *rows: explorer_parameters(c) - _experts(c) * 7 / 8,
            "each layer has 8 experts, all of which must be stored",
        ),
    )


SHAPES = (
    Question(
        name="xl_heads",
        level="shapes",
        unit="heads",
        answer=lambda *rows: XL.config.n_heads,
        typical=(
            (lambda *rows: XL.misprints["n_heads"], "the printed number: 24 heads of 128 are 3072 wide, not 2048"),
        ),
    ),
    Question(
        name="width_13b",
        level="shapes",
        unit="numbers",
        answer=lambda *rows: LARGE.config.hidden_size,
        typical=(
            (lambda *rows: LARGE.misprints["hidden_size"], "the printed number: do 40 heads of 128 make 5140?"),
            (lambda *rows: 5248, "41 heads of 128; the table has 40"),
        ),
    ),
)

ROW = (
    Question(
        name="unsharded_bytes",
        level="row",
        unit="bytes",
        tolerance=0.001,
        answer=lambda d, first, second: 18,
        typical=((lambda d, first, second: first * GB / P, "the heading says GB, the tool divides by 2**30: GiB"),),
    ),
    Question(
        name="sharded_bytes",
        level="row",
        unit="bytes",
        tolerance=0.001,
        answer=lambda d, first, second: 16,
        typical=(
            (lambda d, first, second: 18, "so it should be, if all were divided; compute it from the printed row"),
            (lambda d, first, second: second * GB * d / P, "the heading says GB, the tool divides by 2**30: GiB"),
            (lambda d, first, second: second * GiB / P, "that is one GPU's part: all GPUs hold the model together"),
        ),
    ),
    Question(
        name="row_with_copy",
        level="row",
        unit="GiB",
        tolerance=0.001,
        answer=lambda d, first, second: 18 * P / d / GiB,
        typical=(
            (lambda d, first, second: second, "that is the printed row: the 16-bit weights are not in it"),
            (lambda d, first, second: first, "that is the NO_OP row: nothing of it is divided yet"),
            (lambda d, first, second: first / d * GB / GiB, "taken as GB; the printed row is in GiB already"),
            (lambda d, first, second: 20 * P / d / GiB, "two bytes are missing for each parameter, not four"),
            (lambda d, first, second: 18 * P / d / GB, "that is in GB; GiB is asked, as the tool divides"),
        ),
    ),
    Question(
        name="row_in_gb",
        level="row",
        unit="GB",
        tolerance=0.001,
        answer=lambda d, first, second: 16 * P / d / GB,
        typical=(
            (lambda d, first, second: second, "that is the printed number, and it is in GiB"),
            (lambda d, first, second: second * GB / GiB, "turned round: a GiB is more than a GB, so there are more GB"),
            (lambda d, first, second: first * GiB / d / GB, "that is with the lasting copy; the printed row has none"),
        ),
    ),
)

MISSING = _experts(RELEASED) - _experts(FILE)

MODEL = (
    Question(
        name="file_parameters",
        level="model",
        unit="parameters",
        tolerance=0.001,
        answer=lambda *rows: explorer_parameters(FILE),
        typical=(
            (
                lambda *rows: explorer_parameters(FILE) + _experts(FILE) / 2,
                "the file says two matrices in a block, not three",
            ),
            *_counted_amiss(FILE),
        ),
    ),
    Question(
        name="released_parameters",
        level="model",
        unit="parameters",
        tolerance=0.001,
        answer=lambda *rows: model_parameters(RELEASED),
        typical=(
            (
                lambda *rows: explorer_parameters(RELEASED) - _experts(RELEASED) / 3,
                "a block of the released model has three matrices",
            ),
            *_counted_amiss(RELEASED),
            (
                lambda *rows: (
                    explorer_parameters(RELEASED)
                    + 2 * RELEASED.n_layers * RELEASED.hidden_size * (RELEASED.hidden_size - RELEASED.kv_size)
                ),
                "keys and values have 8 heads there, not 48",
            ),
        ),
    ),
    Question(
        name="missing_in_blocks",
        level="model",
        unit="parameters",
        tolerance=0.001,
        answer=lambda *rows: MISSING,
        typical=(
            (lambda *rows: MISSING / RELEASED.n_layers, f"that is one layer; there are {RELEASED.n_layers}"),
            (lambda *rows: MISSING / RELEASED.n_experts, f"that is one expert; each layer has {RELEASED.n_experts}"),
            (lambda *rows: -MISSING, "the file has too few: give how many, without a sign"),
            (
                lambda *rows: explorer_parameters(RELEASED) - explorer_parameters(FILE),
                "that is the whole difference; only the feed-forward blocks are asked",
            ),
        ),
    ),
)

ROUNDED = "rounded too far: all numbers here are taken to 0.1 %"

LAW = (
    Question(
        name="ratio_smallest",
        level="law",
        unit="tokens",
        tolerance=0.001,
        answer=lambda *rows: _ratio("llama_7b"),
        typical=(
            (lambda *rows: 20, "that is the law; divide what it was trained on by its parameters"),
            (lambda *rows: round(_ratio("llama_7b")), ROUNDED),
        ),
    ),
    Question(
        name="ratio_largest",
        level="law",
        unit="tokens",
        tolerance=0.001,
        answer=lambda *rows: _ratio("llama_65b"),
        typical=(
            (lambda *rows: 20, "that is the law, and this one is near it, but not on it"),
            *((lambda *rows, digits=digits: round(_ratio("llama_65b"), digits), ROUNDED) for digits in (0, 1)),
        ),
    ),
    Question(
        name="law_smallest",
        level="law",
        unit="tokens",
        tolerance=0.001,
        answer=lambda *rows: chinchilla_tokens(_printed("llama_7b")),
        typical=(
            (lambda *rows: LLAMA_TOKENS["llama_7b"], "that is what it was trained on"),
            (lambda *rows: chinchilla_tokens(_printed("llama_7b")) / 1e12, "in trillions? The number itself is asked"),
        ),
    ),
)

SLIPS = NumberExercise(
    key="01.10",
    title="find the wrong number: four printed slips",
    given=given,
    world_size=lambda *rows: 0,
    levels={"shapes": 2, "row": 4, "model": 3, "law": 2},
    questions=(*SHAPES, *ROW, *MODEL, *LAW),
    praise={
        "shapes": "right. The printed 24 and 5140 are the paper's own, and a model of these sizes cannot be built",
        "row": "right. 18 bytes are 16-bit weights 2, fp32 gradients 4, fp32 weights and moments 12. FSDP2 shards what "
        "is fp32, 16 bytes, and makes 16-bit weights for one block at a time; if a copy of them lasts, 18 are shared. "
        "Both are true; the row does not say which it means, and says GB for GiB",
        "model": "right. The file describes a model of a quarter of Grok-1's size: its numbers are true, "
        "of another model",
        "law": "right. Only the largest is near the law; the small ones were trained far beyond it, to be cheap in use",
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
)
