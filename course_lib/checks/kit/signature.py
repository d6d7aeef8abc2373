"""From a wrong tensor to what it reveals: a ratio, a missing rank, a shifted chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.verify.causes import AVERAGES, VALUES, explain
from course_lib.verify.ratios import times

Source = tuple[int, int]  # (rank, chunk): a chunk of a rank's input
Piece = list[Source]  # the chunks whose sum makes one piece of a result
Plan = list[list[Piece]]  # per rank: the pieces of its result, in order


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """What the ranks had (`blocks[rank][chunk]`, flat) and what each must end with."""

    blocks: list[list[Tensor]]
    plan: Plan
    largest: bool = False  # combine by maximum instead of by sum
    divisor: int = 1
    mixed: str = ""  # what is asked about a piece into which other chunks were added

    @property
    def world_size(self) -> int:
        return len(self.blocks)

    def piece(self, sources: Piece) -> Tensor:
        """Some chunks combined into one."""
        stacked = torch.stack([self.blocks[rank][chunk] for rank, chunk in sources])
        if self.largest:
            return stacked.amax(0)
        total = stacked.sum(0, dtype=stacked.dtype)
        return total / self.divisor if self.divisor > 1 else total

    def wanted(self, rank: int) -> Tensor:
        """The whole result of a rank, flat."""
        return torch.cat([self.piece(sources) for sources in self.plan[rank]])


def diagnose(results: Sequence[Tensor], puzzle: Puzzle) -> str | None:
    """None if every rank's flat result is right, else one line on the first thing that is wrong."""
    wanted = [puzzle.wanted(rank) for rank in range(puzzle.world_size)]
    if all(_same(got, want) for got, want in zip(results, wanted, strict=True)):
        return None
    return (
        _overall_ratio(results, wanted, puzzle)
        or _shifted(results, wanted, puzzle)
        or _first_wrong_piece(results, puzzle)
    )


def only_own_part(results: Sequence[Tensor], puzzle: Puzzle) -> bool:
    """Whether every rank, asked for one chunk of a sum, returned that chunk of its own input."""
    for rank, sources_of_rank in enumerate(puzzle.plan):
        if len(sources_of_rank) != 1 or len(sources_of_rank[0]) < 2 or len(puzzle.blocks[0]) < 2:
            return False
        if not _same(results[rank], puzzle.blocks[rank][sources_of_rank[0][0][1]]):
            return False
    return True


def _same(got: Tensor, want: Tensor) -> bool:
    """Equal up to the rounding of one division; the inputs are integers, so that sums are exact."""
    return got.shape == want.shape and torch.allclose(got.double(), want.double(), rtol=1e-5, atol=1e-6)


def _overall_ratio(results: Sequence[Tensor], wanted: Sequence[Tensor], puzzle: Puzzle) -> str | None:
    got, want = torch.cat([r.double() for r in results]), torch.cat([w.double() for w in wanted])
    factor = float(got @ want / (want @ want)) if bool(want.any()) else 1.0
    if not torch.allclose(got, factor * want, rtol=1e-3, atol=0.51 if not results[0].is_floating_point() else 1e-3):
        return None
    meaning = explain(factor, puzzle.world_size, AVERAGES if puzzle.divisor > 1 else VALUES)
    text = f"every number is exactly {times(factor)} the right one"
    return f"{text}: {meaning}" if meaning else text


def _shifted(results: Sequence[Tensor], wanted: Sequence[Tensor], puzzle: Puzzle) -> str | None:
    """Whether each rank holds what another rank, always the same distance away, should hold."""
    world_size = len(wanted)
    for shift in range(1, world_size):
        others = [wanted[(rank + shift) % world_size] for rank in range(world_size)]
        if all(_same(got, other) for got, other in zip(results, others, strict=True)):
            ring = shift == 1 and all(len(pieces) == 1 and len(pieces[0]) > 1 for pieces in puzzle.plan)
            last = f"chunk 0 is finished on rank {world_size - 1}, not on rank 0: start one chunk earlier"
            earlier = f"; {last}" if ring else ""
            return (
                f"rank r holds what belongs to rank (r + {shift}) mod {world_size}: "
                f"right sums, but the chunks are shifted{earlier}"
            )
    return None


def _first_wrong_piece(results: Sequence[Tensor], puzzle: Puzzle) -> str:
    for rank, sources_of_rank in enumerate(puzzle.plan):
        start = 0
        for number, sources in enumerate(sources_of_rank):
            want = puzzle.piece(sources)
            got = results[rank][start : start + len(want)]
            if not _same(got, want):
                place = f"rank {rank}, numbers {start} to {start + len(want) - 1}"
                return f"{place}: {_describe(got, number, sources, puzzle)}"
            start += len(want)
    raise AssertionError("diagnose: called with right results")


def _describe(got: Tensor, number: int, sources: Piece, puzzle: Puzzle) -> str:
    """What one wrong piece is made of."""
    if not bool(got.any()):
        return f"only zeros, where {_name(sources, puzzle)} belongs: never received?"
    for chunk in _chunks_to_try(sources, puzzle):
        counts = _contributions(got, chunk, puzzle)
        if counts is None:
            continue
        if len(sources) == 1:
            holder = max(counts, key=lambda rank: abs(counts[rank]))
            if [c for c in counts.values() if abs(c) > 1e-3] == [counts[holder]] and round(counts[holder], 3) == 1:
                return f"{_name([(holder, chunk)], puzzle)} stands where {_name(sources, puzzle)} belongs"
        if chunk != sources[0][1]:
            return f"made of chunk {chunk}, where {_name(sources, puzzle)} belongs: chunk numbers mixed up"
        return f"{_miscount(counts, sources)} in {_name(sources, puzzle)}"
    return _mixed(got, sources, puzzle) or _misplaced(got, sources, puzzle) or _of_no_input(sources, puzzle)


def _mixed(got: Tensor, sources: Piece, puzzle: Puzzle) -> str | None:
    """Whether a piece is made of several chunks, where that has a question of its own."""
    columns = [chunk for blocks in puzzle.blocks for chunk in blocks]
    if not puzzle.mixed or len(got) <= len(columns) or any(len(column) != len(got) for column in columns):
        return None
    matrix = torch.stack(columns, dim=1).double()
    counts = torch.linalg.lstsq(matrix, got.double().unsqueeze(1)).solution.squeeze(1)
    if not torch.allclose(matrix @ counts, got.double(), atol=1e-3):
        return None
    return f"other chunks are added to {_name(sources, puzzle)}: {puzzle.mixed}"


def _misplaced(got: Tensor, sources: Piece, puzzle: Puzzle) -> str | None:
    """Whether every number stands in some rank's input; for sums that would say nothing."""
    if len(sources) > 1 and not puzzle.largest:
        return None
    belongs, own = _name(sources, puzzle), sources[0][1]
    if puzzle.largest and bool((torch.stack([blocks[own] for blocks in puzzle.blocks]) == got).any(0).all()):
        return f"does not count every rank, where {belongs} belongs"
    if not bool(torch.isin(got, torch.cat([chunk for blocks in puzzle.blocks for chunk in blocks])).all()):
        return None
    question = "is the chunk you send the one your neighbour expects?"
    return f"holds numbers of another chunk, where {belongs} belongs: {question}"


def _of_no_input(sources: Piece, puzzle: Puzzle) -> str:
    belongs = _name(sources, puzzle)
    return f"holds numbers that are in no rank's input, where {belongs} belongs: memory that was never filled?"


def _chunks_to_try(sources: Piece, puzzle: Puzzle) -> list[int]:
    own = sources[0][1]
    return [own] + [chunk for chunk in range(len(puzzle.blocks[0])) if chunk != own]


def _contributions(got: Tensor, chunk: int, puzzle: Puzzle) -> dict[int, float] | None:
    """How often each rank's `chunk` is counted in `got`; None if `got` is no such sum."""
    columns = [blocks[chunk] for blocks in puzzle.blocks]
    if any(len(column) != len(got) for column in columns):
        return None
    if puzzle.largest or len(got) <= len(columns):
        return _single_source(got, columns)
    matrix = torch.stack(columns, dim=1).double() / puzzle.divisor
    counts = torch.linalg.lstsq(matrix, got.double().unsqueeze(1)).solution.squeeze(1)
    if not torch.allclose(matrix @ counts, got.double(), atol=1e-3):
        return None
    return {rank: float(count) for rank, count in enumerate(counts)}


def _single_source(got: Tensor, columns: list[Tensor]) -> dict[int, float] | None:
    """For pieces too short for a unique sum: is it one rank's chunk as it was?"""
    equal = [rank for rank, column in enumerate(columns) if _same(column, got)]
    return {rank: float(rank == equal[0]) for rank in range(len(columns))} if equal else None


def _miscount(counts: dict[int, float], sources: Piece) -> str:
    wanted = {rank for rank, _ in sources}
    missing = [rank for rank in wanted if abs(counts[rank]) < 1e-3]
    extra = {r: c for r, c in counts.items() if abs(c - (r in wanted)) > 1e-3 and abs(c) >= 1e-3}
    words = []
    if missing:
        words.append(f"the contribution of {_ranks(missing)} is missing")
    if extra:
        words.append(", ".join(f"rank {rank} is counted {count:.3g} times" for rank, count in extra.items()))
    return " and ".join(words)


def _name(sources: Piece, puzzle: Puzzle) -> str:
    rank, chunk = sources[0]
    whole = len(puzzle.blocks[0]) == 1
    if len(sources) > 1:
        return f"the {'maximum' if puzzle.largest else 'sum'}{'' if whole else f' of chunk {chunk}'}"
    return f"rank {rank}'s input" if whole else f"chunk {chunk} of rank {rank}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
