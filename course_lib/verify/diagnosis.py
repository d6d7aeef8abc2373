"""What the ladder says when a rung fails: where, by which ratio, the likely cause, and the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from course_lib.comm.ledger import Ledger
from course_lib.errors import four_parts
from course_lib.verify.equality import deviation
from course_lib.verify.evidence import Evidence
from course_lib.verify.pairs import Pair, gradient_pairs, names_right, wrong_after_first
from course_lib.verify.ratios import in_words
from course_lib.verify.replay import Replay
from course_lib.verify.suspects import convicted
from course_lib.verify.trace import Trace

BYTES = "bytes"


class NotEqual(AssertionError):
    """The ranks did not compute what one device computes; says on which rung first, where, and by which ratio.

    `causes` are the names of what is said to have caused it, in the table of suspects. `deviation` is
    that of the tensor which is named, as the message says it; infinite if one side has none, or another shape. None
    where no tensors were compared. `climbed` are the deviations of the rungs up to this one, and
    `loss_apart` that of the loss curve, which may look right all the same; None where no losses are told.
    """

    def __init__(
        self,
        message: str,
        *,
        rung: str,
        name: str,
        rank: int,
        ratio: float | None,
        kind: str,
        causes: Sequence[str] = (),
        deviation: float | None = None,
        climbed: Mapping[str, float] | None = None,
        tolerance: float = 0.0,
        loss_apart: float | None = None,
    ) -> None:
        super().__init__(message)
        self.rung, self.name, self.rank, self.ratio, self.kind = rung, name, rank, ratio, kind
        self.causes, self.deviation = tuple(causes), deviation
        self.climbed, self.tolerance, self.loss_apart = dict(climbed or {}), tolerance, loss_apart


def not_equal(
    pairs: Sequence[Pair],
    wrong: Sequence[Pair],
    alone: Trace,
    ranks: Sequence[Trace],
    replay: Replay,
    tolerance: float,
    *,
    below: str,
    climbed: Mapping[str, float],
) -> NotEqual:
    """The error for a rung of these pairs, of which some are wrong; `climbed` are the deviations of the rungs before.

    `below` is a lower rung that is wrong already and was not asked for.
    """
    evidence = Evidence(
        wrong=[pair for pair in wrong if pair.replica == wrong[0].replica],
        right=names_right(pairs, wrong, alone[0]),
        alone=alone[0],
        ranks=[trace for trace, _ in ranks],
        adamw=[trace for _, trace in ranks if trace],
        replay=replay,
        tolerance=tolerance,
        below=below,
    )
    return _explained(evidence, climbed)


def _explained(evidence: Evidence, climbed: Mapping[str, float]) -> NotEqual:
    """The error for the first pair that is not equal."""
    pair, found, p = evidence.first, evidence.signature, evidence.n_ranks
    late = _second_step(evidence)
    causes = convicted(late or evidence)
    equal = f"{p} ranks together equal" if p > 1 else "1 rank equals"
    rule = f"{equal} one device on the same batch within {evidence.tolerance:g}"
    if pair.exact:
        rule = f"{equal} one device on the same batch to the last bit"
    if pair.replica:
        rule = "all copies of a parameter are equal to the last bit"
    name = "" if pair.name == pair.rung else f", {pair.name}"
    message = four_parts(
        "assert_parallel_equals",
        f"{pair.rung}{name} on rank {pair.rank}: {found.words}{_by_how_much(pair)}",
        rule,
        ("the first step is right, but not the second's gradients: " if late else "")
        + "; or ".join(way_out for _, way_out in causes),
    )
    return NotEqual(
        message,
        rung=pair.rung,
        name=pair.name,
        rank=pair.rank,
        ratio=found.ratio,
        kind=found.kind,
        causes=[name for name, _ in causes],
        deviation=pair.distance(),
        climbed={**climbed, pair.rung: pair.distance()},
        tolerance=evidence.tolerance,
        loss_apart=_loss_apart(evidence),
    )


def _loss_apart(evidence: Evidence) -> float | None:
    """How far the first rank's losses are from one device's, where both are told and are numbers."""
    got, want = evidence.ranks[0].losses, evidence.alone.losses
    if not got or not want or any(torch.as_tensor(loss).numel() != 1 for loss in (*got, *want)):
        return None
    return deviation(torch.tensor(got, dtype=torch.float64), torch.tensor(want, dtype=torch.float64))


def _by_how_much(pair: Pair) -> str:
    """The deviation, where there is one."""
    if pair.got is None or pair.want is None or pair.got.shape != pair.want.shape:
        return ""
    return f", deviation {pair.distance():.2g}"


def _second_step(evidence: Evidence) -> Evidence | None:
    """Where weights are wrong though the first step is right: the second step's gradients, if they are wrong."""
    alone, ranks, tolerance = evidence.alone, evidence.ranks, evidence.tolerance
    if evidence.rung != "parameters" or evidence.below or evidence.first.replica or not alone.second_gradients:
        return None
    if wrong_after_first(alone, ranks, tolerance):
        return None
    pairs = list(
        gradient_pairs(alone, alone.second_gradients, [trace.second_gradients for trace in ranks], ranks[0].is_read)
    )
    wrong = [pair for pair in pairs if not pair.holds(tolerance)]
    right = names_right(pairs, wrong, alone)
    return replace(evidence, wrong=wrong, right=right, step=1) if wrong else None


def compare_bytes(ledger: Ledger, cost: Sequence[int], n_microbatches: int) -> None:
    """Raise NotEqual for the first rank that sent something else than the formula says."""
    for rank, want in enumerate(cost):
        got = ledger.bytes_sent(rank)
        if got != want:
            cause, way_out = _of_bytes(got, want, n_microbatches)
            ratio = got / want if want else None
            words = f"{got:,}, by the formula {want:,}" + (f", {in_words(ratio)} it" if ratio else "")
            rule = "what is sent follows the formula, to the byte"
            message = four_parts("assert_parallel_equals", f"bytes that rank {rank} sends: {words}", rule, way_out)
            raise NotEqual(message, rung=BYTES, name=BYTES, rank=rank, ratio=ratio, kind="bytes", causes=[cause])


def _of_bytes(got: int, want: int, n_microbatches: int) -> tuple[str, str]:
    """What usually gives such a number of bytes."""
    if not got:
        return "not recorded", "only course_lib.comm's own algorithms record what they send: choose one of them"
    if got > want and n_microbatches > 1:
        return "sent in every micro-batch", "gradients are sent in every micro-batch: all but the last under no_sync()"
    if got > want:
        return (
            "sent more",
            "something is sent that the formula does not know: look at the ledger's calls, is one made twice?",
        )
    return "sent less", "the formula counts something that is not sent: compare it with the ledger's calls"
