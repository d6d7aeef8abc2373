"""What 09.11 must end at: the small Llama of the learner's file, trained in one process, and what mistakes make of it.

Ranks are entries of a list here. Where all entries are one model, its gradients are whole, as on one device; where each
is a copy, a copy has its own rank's terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors
from course_lib.checks.kit.script import Start
from course_lib.sequence_cut import SequenceCut

WORDS, _WIDTH, _INNER, _HEADS, KV_HEADS, DIM, LAYERS = 42, 20, 28, 6, 2, 4, 2
BATCH, LENGTH, STEPS = 2, 16, 3
_IGNORED = -100  # a label that nobody is to guess
_PROMPTS = (5, 2)  # so many labels at the beginning of a row are ignored

_Positions = Sequence[Sequence[int]]


class Sums(NamedTuple):
    """By rank the losses added up, and how many they are; and the labels of the whole batch that count."""

    added: Sequence[Tensor]
    many: Sequence[int]
    whole: int


class Trained(NamedTuple):
    """Rank 0's weights at the end, and of each batch before its step: the mean loss, and by rank its share."""

    weights: Tensors
    losses: list[float]
    shares: list[list[float]]


class CausalLayer(nn.Module):
    """A block of the learner's file, before and after attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(_WIDTH), nn.RMSNorm(_WIDTH)
        self.q, self.o = nn.Linear(_WIDTH, _HEADS * DIM, bias=False), nn.Linear(_HEADS * DIM, _WIDTH, bias=False)
        self.k, self.v = (nn.Linear(_WIDTH, KV_HEADS * DIM, bias=False) for _ in range(2))
        self.up, self.down = nn.Linear(_WIDTH, _INNER, bias=False), nn.Linear(_INNER, _WIDTH, bias=False)

    def heads(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values, each (B, heads, n, DIM)."""
        read = self.norm1(x)
        return [one(read).unflatten(-1, (-1, DIM)).transpose(1, 2) for one in (self.q, self.k, self.v)]

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Reader(nn.Module):
    """The model of the learner's file."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, _WIDTH)
        self.blocks = nn.ModuleList(CausalLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(_WIDTH), nn.Linear(_WIDTH, WORDS, bias=False)


def make_task(case: Start, seed: int) -> dict[str, Any]:
    """Weights, batches of tokens and labels, who has which positions, and an optimizer."""
    adamw = case.look == "adamw"
    positions = _positions(case.world_size, striped=adamw)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 83)
        weights = Reader().double().state_dict()
        batches = [_batch(positions[-1] if adamw and step == 1 else ()) for step in range(STEPS)]
    optimizer, rate = ("AdamW", 0.01) if adamw else ("SGD", 0.5)
    return {"weights": weights, "batches": batches, "positions": positions, "optimizer": optimizer, "rate": rate}


def _positions(ranks: int, *, striped: bool) -> list[list[int]]:
    """By rank: zigzag, or dealt out like cards."""
    if striped:
        return [list(range(rank, LENGTH, ranks)) for rank in range(ranks)]
    return [SequenceCut(LENGTH, ranks, "zigzag").positions(rank) for rank in range(ranks)]


def _batch(nothing_at: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Tokens and labels; at some positions there is nothing to guess."""
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1))
    labels = tokens.clone()
    for row, prompt in enumerate(_PROMPTS):
        labels[row, :prompt] = _IGNORED
    labels[:, [at + 1 for at in nothing_at]] = _IGNORED
    return tokens, labels


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """As in the learner's file: x (B, heads, n, DIM) at these n positions."""
    a, b = x.chunk(2, dim=-1)
    angle = positions[:, None] / 100 ** (torch.arange(DIM // 2).double() / (DIM // 2))
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def _together(parts: Sequence[Tensor], rank: int) -> Tensor:
    return torch.cat(list(parts), 2)


def _without_gradient(parts: Sequence[Tensor], rank: int) -> Tensor:
    return _together(parts, rank).detach()


def _own_gradient_alone(parts: Sequence[Tensor], rank: int) -> Tensor:
    return torch.cat([one if other == rank else one.detach() for other, one in enumerate(parts)], 2)


def _by_position(mine: Tensor, all_of_them: Tensor) -> Tensor:
    return mine[:, None] >= all_of_them


def _row_against_column(mine: Tensor, all_of_them: Tensor) -> Tensor:
    return torch.ones(len(mine), len(all_of_them), dtype=torch.bool).tril()


def _as_if_in_order(mine: Tensor, all_of_them: Tensor) -> Tensor:
    return mine[:, None] >= torch.arange(len(all_of_them))


def _everything(mine: Tensor, all_of_them: Tensor) -> Tensor:
    return torch.ones(len(mine), len(all_of_them), dtype=torch.bool)


def _next_labels(labels: Tensor, at: list[int]) -> Tensor:
    return labels[:, 1:][:, at]


def _same_labels(labels: Tensor, at: list[int]) -> Tensor:
    return labels[:, :-1][:, at]


def _cut_then_shifted(labels: Tensor, at: list[int]) -> Tensor:
    """Each of a rank's places guesses the label of its next place; the last one has none."""
    return F.pad(labels[:, at][:, 1:], (0, 1), value=_IGNORED)


def _of_all(sums: Sums) -> Tensor:
    return torch.stack(list(sums.added)).sum() / sum(sums.many)


def _by_whole(sums: Sums) -> Tensor:
    return torch.stack(list(sums.added)).sum() / sums.whole


def _mean_of_means(sums: Sums) -> Tensor:
    return torch.stack([one / max(many, 1) for one, many in zip(sums.added, sums.many, strict=True)]).mean()


def _sum_of_means(sums: Sums) -> Tensor:
    return len(sums.many) * _mean_of_means(sums)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a script trains; right, unless a part is chosen otherwise."""

    gather: Callable[[Sequence[Tensor], int], Tensor] = _together
    angles: Callable[[Tensor], Tensor] = lambda positions: positions
    of_keys: Callable[[Tensor], Tensor] = lambda angles: angles
    sees: Callable[[Tensor, Tensor], Tensor] = _by_position
    targets: Callable[[Tensor, list[int]], Tensor] = _next_labels
    total: Callable[[Sums], Tensor] = _of_all
    summed: bool = True  # the gradients, over the ranks
    left: Callable[[int], int] = lambda ranks: 0  # times the gradient of the step before is added


def trained(task: dict[str, Any], way: Way) -> Trained:
    """The same training in one process."""
    positions = task["positions"]
    models = [_from(task["weights"]) for _ in positions[: 1 if way.summed else None]]
    optimizers = [getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"]) for model in models]
    losses, shares = [], []
    for tokens, labels in task["batches"]:
        for gradient in (one.grad for model in models for one in model.parameters()):
            if gradient is not None:
                gradient *= way.left(len(positions))
        scores = _scores(models * (len(positions) // len(models)), tokens[:, :-1], positions, way)
        sums = _sums(scores, [way.targets(labels, at) for at in positions], labels)
        loss = way.total(sums)
        loss.backward()
        losses.append(loss.item())
        shares.append([one.item() / sums.whole for one in sums.added])
        for optimizer in optimizers:
            optimizer.step()
    return Trained(models[0].state_dict(), losses, shares)


def _from(weights: Tensors) -> Reader:
    model = Reader().double()
    model.load_state_dict(weights)
    return model


def _scores(models: Sequence[Reader], tokens: Tensor, positions: _Positions, way: Way) -> list[Tensor]:
    """Logits by rank, (B, n, WORDS)."""
    theirs = torch.tensor([at for mine in positions for at in mine])
    own = [torch.tensor(mine) for mine in positions]
    xs = [model.embedding(tokens[:, mine]) for model, mine in zip(models, own, strict=True)]
    for number in range(LAYERS):
        layers: list[Any] = [model.blocks[number] for model in models]
        read = [layer.heads(x) for layer, x in zip(layers, xs, strict=True)]
        angles = [way.angles(mine) for mine in own]
        qs = [rotated(q, at) for (q, _, _), at in zip(read, angles, strict=True)]
        ks = [rotated(k, way.of_keys(at)) for (_, k, _), at in zip(read, angles, strict=True)]
        vs = [v for _, _, v in read]
        for rank, layer in enumerate(layers):
            k, v = way.gather(ks, rank), way.gather(vs, rank)
            seen = F.scaled_dot_product_attention(
                qs[rank], k, v, attn_mask=way.sees(own[rank], theirs), enable_gqa=True
            )
            xs[rank] = layer(xs[rank], seen)
    return [model.head(model.norm(x)) for model, x in zip(models, xs, strict=True)]


def _sums(scores: Sequence[Tensor], targets: Sequence[Tensor], labels: Tensor) -> Sums:
    added = [
        F.cross_entropy(one.flatten(0, 1), target.flatten(), ignore_index=_IGNORED, reduction="sum")
        for one, target in zip(scores, targets, strict=True)
    ]
    return Sums(added, [int((one != _IGNORED).sum()) for one in targets], int((labels[:, 1:] != _IGNORED).sum()))


_SHIFTED_LATE = (
    "what comes out if labels are cut first and shifted then. The next label of a position is often on another rank: "
    "shift, then cut"
)
_LEFT_OVER = "what comes out if a gradient is left from the step before"
WRONG_WAYS: tuple[tuple[str, Way], ...] = (  # what is said of them, and which they are
    (
        "what comes out if each rank divides by its own labels and the means are averaged. Ranks have different "
        "numbers of them, and each label counts alike",
        Way(total=_mean_of_means),
    ),
    (
        "what comes out if each rank divides by its own labels and the gradients are added up: divide by the "
        "labels of all ranks",
        Way(total=_sum_of_means),
    ),
    (
        "what comes out if everything is divided by the ranks once more: the loss is a sum over all ranks' "
        "labels, so its gradients are added up, and not averaged",
        Way(total=lambda sums: _of_all(sums) / len(sums.many)),
    ),
    (
        "what comes out if every gradient is too large by the number of processes: is it summed twice?",
        Way(total=lambda sums: _of_all(sums) * len(sums.many)),
    ),
    (
        "what comes out if the loss is divided by all positions. Those whose label is -100 do not count",
        Way(total=lambda sums: torch.stack(list(sums.added)).sum() / (BATCH * LENGTH)),
    ),
    (
        "what comes out if losses are added up and not divided by the number of labels that count",
        Way(total=lambda sums: torch.stack(list(sums.added)).sum()),
    ),
    (
        "what rank 0 learns if nobody adds up gradients: each rank has only the terms of its own positions",
        Way(summed=False),
    ),
    (
        "what comes out if keys and values are gathered without their gradient: plain all_gather has no backward",
        Way(gather=_without_gradient),
    ),
    (
        "what comes out if a rank's keys and values get their gradient from its own queries alone. Other ranks' "
        "queries have read them, too",
        Way(gather=_own_gradient_alone),
    ),
    (
        "what comes out if each rank counts its positions from 0, in the angles",
        Way(angles=lambda positions: torch.arange(len(positions))),
    ),
    ("what comes out if keys are not rotated", Way(of_keys=torch.zeros_like)),
    (
        "what comes out if the mask compares places and not positions, row against column, as is_causal does",
        Way(sees=_row_against_column),
    ),
    (
        "what comes out if the mask takes the gathered keys to lie in the sequence's order. They lie rank by rank",
        Way(sees=_as_if_in_order),
    ),
    ("what comes out if no key is masked", Way(sees=_everything)),
    (
        "what comes out if a position is to guess the token that it reads. Its label is one further",
        Way(targets=_same_labels),
    ),
    *(
        (_SHIFTED_LATE, Way(targets=_cut_then_shifted, total=total))
        for total in (_of_all, _by_whole, _mean_of_means, _sum_of_means)
    ),
    (_LEFT_OVER, Way(left=lambda ranks: 1)),
    (_LEFT_OVER, Way(left=lambda ranks: ranks)),  # where a sum over the ranks counts it once for each
)
