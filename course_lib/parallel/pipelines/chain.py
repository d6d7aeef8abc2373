"""A chain of linear maps y = W_n ... W_1 x on ranks that share its matrices, forward and backward by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.comm.call import resolve
from course_lib.errors import four_parts
from course_lib.split import TRANSPOSED, MatrixCut


class Chain:
    """This rank's part of the matrices, each cut as `cuts` says.

    A replicated matrix reads x whole and leaves W x whole. One cut by its rows ("out") reads x whole and leaves rows of
    W x. One cut by its columns ("in") reads those rows of x, and leaves a part of the sum that W x is.
    Shapes: x (features, samples), whole on every rank; weights (out, in), whole: a rank keeps its part alone.
    Raises: ValueError unless each matrix has a known cut.
    """

    def __init__(
        self, weights: Sequence[Tensor], cuts: Sequence[MatrixCut], *, group: ProcessGroup | None = None
    ) -> None:
        if len(cuts) != len(weights) or not set(cuts) <= set(get_args(MatrixCut)):
            values, way_out = (
                f"{len(weights)} matrices, cuts={list(cuts)}",
                f"choose from {', '.join(get_args(MatrixCut))}",
            )
            raise ValueError(four_parts("Chain", values, "each matrix has a cut", way_out))
        self.group = resolve(group, "Chain")
        self.cuts = tuple(cuts)
        self.widths = [weights[0].shape[1], *(len(weight) for weight in weights)]
        self.weights = [self.part(weight, cut) for weight, cut in zip(weights, cuts, strict=True)]
        self.gradients: list[Tensor] = []  # of this rank's weights
        self._inputs: list[Tensor] = []  # what each matrix read

    def part(self, whole: Tensor, cut: MatrixCut) -> Tensor:
        """This rank's part of a matrix: a view."""
        if cut == "replicated":
            return whole
        return whole.tensor_split(self.group.size(), dim=0 if cut == "out" else 1)[self.group.rank()]

    def forward(self, x: Tensor) -> Tensor:
        """y, whole on every rank."""
        *self._inputs, y = self._pass(self.weights, self.cuts, self.widths, x)
        return y

    def backward(self, gradient: Tensor, *, input_gradient: bool = False) -> Tensor | None:
        """Find `gradients` from that of y, and, if asked for, that of x: whole on every rank.

        The way back is the chain of transposed matrices, and what each of them reads is the gradient of the product.
        """
        matrices = [weight.T for weight in reversed(self.weights)]
        cuts = [TRANSPOSED[cut] for cut in reversed(self.cuts)]
        found = self._pass(matrices, cuts, self.widths[::-1], gradient)
        of_products = [next(found) for _ in matrices][::-1]
        self.gradients = [g @ x.T for g, x in zip(of_products, self._inputs, strict=True)]
        return next(found) if input_gradient else None  # not asked for, it is neither computed nor sent

    def _pass(
        self, matrices: Sequence[Tensor], cuts: Sequence[MatrixCut], widths: Sequence[int], x: Tensor
    ) -> Iterator[Tensor]:
        """What each matrix reads, and last what comes out, whole; nothing is done before it is asked for."""
        left: MatrixCut = "replicated"
        for matrix, cut, width in zip(matrices, cuts, widths, strict=False):
            x = self._passed_on(x, left, cut, width)
            yield x
            x, left = matrix @ x, cut
        yield self._passed_on(x, left, "replicated", widths[-1])

    def _passed_on(self, x: Tensor, left: MatrixCut, reads: MatrixCut, width: int) -> Tensor:
        """What a matrix cut as `left` says has left, as the next one reads it; of `width` features in all."""
        if left == "in" and reads == "in":
            return comm.reduce_scatter(x, group=self.group)
        if left == "in":
            return comm.all_reduce(x, group=self.group)
        if left == "out" and reads != "in":
            return comm.all_gather(x, length=width, group=self.group)
        if left == "replicated" and reads == "in":
            return self.part(x, "out")  # a slice: nobody has to send it
        return x
