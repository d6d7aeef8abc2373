"""Tensors as plain bytes: what comes back is what was sent, whatever there is to a tensor."""

from __future__ import annotations

import cloudpickle
import pytest
import torch
from torch import nn

from course_lib.ranks.plain import pickled, plain

ROWS = torch.arange(6.0).view(2, 3)
TENSORS = {
    "rows": ROWS,
    "columns": ROWS.t(),
    "a row of it": ROWS[1],
    "number": torch.tensor(3),
    "nothing": torch.empty(0, 2, dtype=torch.float64),
    "bfloat16": ROWS.bfloat16(),
    "bool": ROWS > 2,
    "complex": torch.ones(2, dtype=torch.complex64),
    "conjugate": torch.tensor([1j]).conj(),
    "sparse": ROWS.to_sparse(),
    "leaf": ROWS.clone().requires_grad_(),
    "parameter": nn.Parameter(ROWS),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_as_it_was(name):
    sent = TENSORS[name]
    found = cloudpickle.loads(pickled(sent))
    assert type(found) is type(sent) and found.requires_grad == sent.requires_grad
    assert (found.dtype, found.shape, found.layout) == (sent.dtype, sent.shape, sent.layout)
    assert torch.equal(found.to_dense(), sent.to_dense())
    if sent.layout is torch.strided:
        assert torch.equal(plain(sent.resolve_conj()).tensor(), sent)


def test_a_tensor_on_meta_has_no_bytes_and_a_module_and_a_function_are_as_ever():
    meta, module, function = cloudpickle.loads(pickled((torch.empty(3, device="meta"), nn.Linear(2, 2), lambda: 3)))
    assert meta.is_meta and module.weight.requires_grad and function() == 3


def test_one_tensor_stays_one_and_a_part_goes_without_the_rest():
    first, second = cloudpickle.loads(pickled((ROWS, ROWS)))
    assert first is second
    first += 1  # in memory of its own
    assert len(pickled(torch.zeros(10**6)[:2])) < 1000


def test_a_side_of_one_may_have_any_stride():
    x = torch.arange(12.0, dtype=torch.float64).view(6, 2)[:1, :1].as_strided((1, 1), (1, 7))
    assert x.is_contiguous() and x.stride() == (1, 7)
    for number in (x, x[0], torch.arange(6.0).view(2, 3).T[:1, 1:2].as_strided((1,), (12,), 4)):
        assert torch.equal(plain(number).tensor(), number)
