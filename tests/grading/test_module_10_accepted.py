"""Module 10: answers that are right in another way than the solution's, and so are accepted."""

from __future__ import annotations

from course_lib.checks import check
from tests.grading.conftest import edited


def test_a_variance_may_come_in_float32_and_zeros_by_any_way_but_nan():
    answer = edited(
        "10.5",
        {
            "squares.sum().item()": "squares.sum().float().item()",
            "/ torch.where(norms > 0, norms, 1.0).unsqueeze(-1) * self.levels": (
                "/ norms.unsqueeze(-1)).nan_to_num() * self.levels"
            ),
            "return rows.abs()": "return (rows.abs()",
        },
    )
    assert check("10.5", answer).passed


def test_columns_may_be_made_orthonormal_by_hand():
    by_hand = (
        "        columns = comm.all_reduce(M @ self.Q) / ranks\n"
        "        P = columns[:, :0]\n"
        "        for column in columns.T:\n"
        "            column = column - P @ (P.T @ column)\n"
        "            P = torch.cat([P, (column / column.norm()).unsqueeze(1)], 1)\n"
    )
    qr = "        P = torch.linalg.qr(comm.all_reduce(M @ self.Q) / ranks).Q\n"
    assert check("10.8", edited("10.8", {qr: by_hand})).passed
