"""09.10: parameters in all and parameters that a token meets, and the line of a table that was not counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.formula import Amounts, miscounted
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.config import ModelConfig, load_model
from course_lib.config.model import LatentAttention
from course_lib.costs.model.parameters import active_parameters, layer_weights, model_parameters
from course_lib.verify.numbers import number_of

_BILLION = 1e9
_MATRICES = 3  # of a SwiGLU block
_Kind = Literal["published", "by name", "by share", "without shared", "tables once"]
_KINDS: tuple[_Kind, ...] = get_args(_Kind)[1:]  # how a wrong line was made
_Counts = Sequence[tuple[float, float]]


class _Line(NamedTuple):
    """A model's sizes, and what somebody says of it, in billions."""

    name: str
    H: int
    L: int
    V: int
    tied: bool
    attention: int
    F: int
    E: int
    k: int
    shared_F: int
    dense: int
    dense_F: int
    total_b: float
    active_b: float

    @property
    def block(self) -> int:
        """Of one expert."""
        return _MATRICES * self.H * self.F


class _Table(NamedTuple):
    """Lines, one of which was not counted."""

    lines: tuple[_Line, ...]

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A table of models that everybody knows, or of drawn ones with a line made wrong in this way."""

    kind: _Kind
    world_size: int = 1

    def __str__(self) -> str:
        return "four models that everybody knows" if self.kind == "published" else "another table"


_PUBLISHED = (
    load_model("mixtral_8x7b"),
    ModelConfig(
        name="Qwen3-30B-A3B", hidden_size=2048, n_layers=48, n_heads=32, n_kv_heads=4, head_dim=128, qk_norm="head",
        ffn_size=768, vocab_size=151_936, tied=False, n_experts=128, experts_per_token=8,
    ),
    ModelConfig(
        name="DeepSeek-V3", hidden_size=7168, n_layers=61, n_heads=128, n_kv_heads=128, ffn_size=2048,
        vocab_size=129_280, tied=False, n_experts=256, experts_per_token=8, shared_ffn_size=2048,
        dense_layers=3, dense_ffn_size=18_432,
        latent=LatentAttention(kv_rank=512, query_rank=1536, plain_size=128, rotary_size=64, value_size=128),
    ),
    load_model("grok_1"),
)  # fmt: skip


def _records(case: Drawn, seed: int) -> Sequence[_Table]:
    """The published ones stand in another order at another seed, and the wrong one is Mixtral."""
    draw = random.Random(f"{case.kind}{seed}")
    if case.kind == "published":
        lines = [_line(c, "by name" if c.name.startswith("Mixtral") else "") for c in _PUBLISHED]
        draw.shuffle(lines)
        return [_Table(tuple(lines))]
    configs = [_config(draw, shared=number % 2 > 0, dense=number == 1, tied=number == 2) for number in range(4)]
    wrong = draw.choice(
        [0, 1, 3] if case.kind == "tables once" else [1, 3] if case.kind == "without shared" else range(4)
    )
    lines = [_line(c, case.kind if number == wrong else "") for number, c in enumerate(configs)]
    draw.shuffle(lines)
    return [_Table(tuple(line._replace(name=f"Model {name}") for line, name in zip(lines, "ABCD", strict=True)))]


def _config(draw: random.Random, *, shared: bool, dense: bool, tied: bool) -> ModelConfig:
    hidden, ffn = draw.choice((2048, 3072, 5120)), draw.choice((1280, 1536, 2560))
    return ModelConfig(
        name="",
        hidden_size=hidden,
        n_layers=draw.choice((26, 34, 46)),
        n_heads=hidden // 128,
        n_kv_heads=8,
        ffn_size=ffn,
        vocab_size=draw.choice((100_352, 151_936, 200_064)),
        tied=tied,
        n_experts=draw.choice((16, 32, 64)),
        experts_per_token=draw.choice((2, 4)),
        shared_ffn_size=draw.choice((2, 3)) * ffn if shared else 0,
        dense_layers=draw.choice((2, 3)) if dense else 0,
        dense_ffn_size=draw.choice((9, 11)) * 1024 if dense else None,
    )


def _line(c: ModelConfig, wrong: str) -> _Line:
    attention = sum(one.parameters for one in layer_weights(c) if one.part in ("attention", "norm"))
    line = _Line(
        c.name, c.hidden_size, c.n_layers, c.vocab_size, c.tied, attention, c.ffn_size, c.n_experts,
        c.experts_per_token, c.shared_ffn_size, c.dense_layers, c.dense_ffn_size or 0, 0.0, 0.0,
    )  # fmt: skip
    total, active = model_parameters(c), active_parameters(c)
    if wrong == "by name":
        one = round(model_parameters(replace(c, n_experts=1, experts_per_token=1, shared_ffn_size=0, dense_layers=0,
                                             dense_ffn_size=None)) / _BILLION) * _BILLION  # fmt: skip
        total, active = int(c.n_experts * one), int(c.experts_per_token * one)
    elif wrong:
        total, active = _count(line, wrong)
    return line._replace(total_b=round(total / _BILLION, 1), active_b=round(active / _BILLION, 1))


def _count(line: _Line, mistake: str = "") -> tuple[int, int]:
    """Of one line, right or with a mistake."""
    H, E, k = line.H, line.E, line.k
    block = 2 * H * line.F if mistake == "two matrices" else line.block
    shared = 0 if mistake == "no shared" else _MATRICES * H * line.shared_F
    once = line.tied if mistake not in ("tables once", "tables twice") else mistake == "tables once"
    tables = line.V * H * (1 if once else 2)
    dense = 0 if mistake == "no dense" else line.dense
    sparse = line.L - dense
    fixed = (
        line.L * line.attention + tables + (0 if mistake == "last norm" else H) + dense * _MATRICES * H * line.dense_F
    )
    routers = (line.L if mistake == "dense routers" else sparse) * H * E
    if mistake == "no router":
        routers = 0
    total = fixed + routers + sparse * (E * block + shared)
    active = fixed + routers + sparse * (k * block + shared)
    if mistake == "without shared":
        active -= sparse * shared
    if mistake == "router rows":
        active -= sparse * H * (E - k)
    if mistake == "one expert":
        active -= sparse * (k - 1) * block
    if mistake == "by share":
        active = total * k // E
    if mistake == "times all":
        total, active = (n * (fixed + sparse * (block + shared)) + routers for n in (E, k))
    return total, active


def _answer(table: Sequence[_Line], *, mistake: str = "") -> tuple[_Counts, str]:
    """The right answer, or one that counts with a mistake and names the right line nevertheless."""
    wrong = next(line.name for line in table if not _follows(line))
    return [_count(line, mistake) for line in table], wrong


def _follows(line: _Line) -> bool:
    return _rounded(_count(line)) == (line.total_b, line.active_b)


def _rounded(counts: tuple[float, float]) -> tuple[float, ...]:
    return tuple(round(number / _BILLION, 1) for number in counts)


def _use(answer: Callable[..., Any], table: _Table) -> tuple[_Counts, str] | str:
    """Runs on a rank; a text says what came instead."""
    found = answer(list(table.lines))
    if not isinstance(found, tuple | list) or len(found) != 2:
        return wrong_kind(type(found).__name__, "two things: a list of counts, and a name")
    counts, name = found
    if not isinstance(counts, tuple | list) or len(counts) != len(table.lines):
        return f"the first thing is not a list with a pair for each of {len(table.lines)} lines"
    pairs = [[number_of(number) for number in pair] if isinstance(pair, tuple | list) else [] for pair in counts]
    if any(len(pair) != 2 or None in pair for pair in pairs):
        return "the list is to hold pairs of numbers: all parameters, and those that a token meets"
    numbers = [(total, active) for total, active in pairs if total is not None and active is not None]
    right = numbers == [_count(line) for line in table.lines]
    return numbers, str(name) if right else ""  # which name follows from wrong counts says nothing more


def _judge(table: _Table, found: tuple[_Counts, str] | str) -> str | None:
    if isinstance(found, str):
        return found
    counts, name = found
    for line, got in zip(table.lines, counts, strict=True):
        for what, mine, right in zip(("all", "active"), got, _count(line), strict=True):
            if mine != right:
                why = miscounted(mine - right, _amounts(line)) or f"{mine:,.0f} there, and {right:,} right"
                return f"{line.name}, {what} parameters: {why}"
    by_name = {line.name: line for line in table.lines}
    if name not in by_name:
        return f"the counts are right, but {name!r} is no model of the table: it has {', '.join(by_name)}"
    if _follows(line := by_name[name]):
        total, active = _rounded(_count(line))
        return f"the counts are right, and {name}'s line follows from them: {total:g} and {active:g} billion"
    return None


def _amounts(line: _Line) -> Amounts:
    """What may be counted too often or not at all."""
    sparse = line.L - line.dense
    return {
        "V x H, one table of the vocabulary": line.V * line.H,
        "H, the last norm": line.H,
        "the routers": sparse * line.E * line.H,
        "the shared experts of all layers": sparse * _MATRICES * line.H * line.shared_F,
        "one expert of every layer that has experts": sparse * line.block,
        "the blocks of the dense layers": line.dense * _MATRICES * line.H * line.dense_F,
        "the attention of all layers": line.L * line.attention,
    }


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_answer, mistake=mistake)


_SLIPS: Slips = {
    "everything is multiplied by the number of experts, as a name like 8x7B suggests. Only the experts are: attention "
    "and the tables are there once": _way("times all"),
    "the active ones are the share k / E of all. Attention, tables and routers are met by every token": (
        _way("by share")
    ),
    "the active ones have no shared expert, and every token passes it": _way("without shared"),
    "shared experts are not counted at all": _way("no shared"),
    "of the router only k rows are active. All E are: it has to look at every expert to choose": _way("router rows"),
    "the routers are not counted": _way("no router"),
    "a token meets one expert in a layer there, and it meets k": _way("one expert"),
    "the first layers have experts there, and they are dense": _way("no dense"),
    "the dense layers have a router there, and they have nothing to choose": _way("dense routers"),
    "the head is not counted where it is a table of its own": _way("tables once"),
    "the head is counted where it is the embedding's table": _way("tables twice"),
    "an expert has three matrices, and two are counted": _way("two matrices"),
    "the last norm is missing": _way("last norm"),
}

_ACTIVE = asked_exercise(
    key="09.10",
    title="find the wrong number: parameters that a token meets",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "published": Level(
            points=2,
            cases=(Drawn(kind="published"),),
            praise="46.7 billion and 12.9: neither 56 nor 14, for eight experts share one attention",
        ),
        "drawn": Level(
            points=3,
            again=True,
            cases=tuple(Drawn(kind=kind) for kind in _KINDS),
            praise="and whatever was miscounted in another table",
        ),
    },
    hints=(
        "Begin with Mixtral, which has no shared expert and no dense layers. What does one of its layers hold, and how "
        "often? Only the experts come eight times.",
        "All parameters: L times attention, the tables, H for the last norm, and in each layer with experts E blocks "
        "of 3 · H · F, the shared block, and a router of E · H.",
        "The active ones are the same sum with k in place of E in one place. In which? A router has to look at all E "
        "experts before it can choose k of them.",
        "The first `dense` layers have one block of 3 · H · dense_F and no router. To compare with what is printed, "
        "round: round(count / 1e9, 1).",
    ),
)
