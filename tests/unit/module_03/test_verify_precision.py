"""The report of a bf16 run: errors and agreement counted by hand, and a real model in two precisions."""

from __future__ import annotations

import pytest
import torch

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.verify.precision import compare_logits

REFERENCE = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])


def test_errors_and_agreement_are_what_one_counts_by_hand():
    found = torch.tensor([[3.0, 2.5, 1.0, 0.0], [0.0, 1.0, 3.5, 3.0]])
    report = compare_logits(found, REFERENCE, top_k=(1, 2, 4))
    assert report.mean_absolute_error == pytest.approx(2 / 8)
    assert report.largest_error == 1.5
    assert report.agreement == {1: 0.5, 2: 1.0, 4: 1.0}
    assert report.errors == pytest.approx({1: 0.0, 2: 2 / 4, 4: 2 / 8})
    assert str(report) == "logits: mean absolute error 0.25, at most 1.5; top-1 50.0%, top-2 100.0%, top-4 100.0%"


def test_tokens_that_changed_places_agree_and_others_do_not():
    found = torch.tensor([[0.0, 2.0, 3.0, 1.0]])  # its three likeliest are 2, 1 and 3, the reference's 0, 1 and 2
    assert compare_logits(found, REFERENCE[:1], top_k=(1, 2, 3)).agreement == pytest.approx({1: 0.0, 2: 0.5, 3: 2 / 3})


def test_equal_logits_agree_everywhere():
    report = compare_logits(REFERENCE, REFERENCE, top_k=(1, 3))
    assert (report.mean_absolute_error, report.agreement) == (0.0, {1: 1.0, 3: 1.0})


def test_bf16_is_near_and_float16_is_nearer():
    config = ModelConfig(
        name="small", hidden_size=24, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=40, vocab_size=50, tied=False
    )
    torch.manual_seed(0)
    tokens = torch.randint(50, (4, 16))
    model = Decoder(config)
    reference = model(tokens).detach()
    bf16, float16 = (compare_logits(model.to(d)(tokens).detach(), reference) for d in (torch.bfloat16, torch.float16))
    assert 0 < float16.mean_absolute_error < bf16.mean_absolute_error < 0.05 * reference.abs().mean()
    assert 0.8 < bf16.agreement[1] <= 1.0


def test_bad_input_is_refused():
    message = (
        r"^compare_logits: shapes \(2, 4\) and \(1, 4\); both hold logits of the same tokens; pass the same tokens"
    )
    with pytest.raises(ValueError, match=message):
        compare_logits(REFERENCE, REFERENCE[:1])
    with pytest.raises(ValueError, match=r"^compare_logits: top_k=\(5,\); there are 4 tokens; give k in 1..4$"):
        compare_logits(REFERENCE, REFERENCE, top_k=(5,))
