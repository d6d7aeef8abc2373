"""TrainConfig refuses what no step can do."""

from __future__ import annotations

import math

import pytest

from course_lib.config import TrainConfig


def test_plain_sgd_by_default():
    config = TrainConfig()
    assert (config.optimizer, config.weight_decay, config.max_norm, config.accumulation) == ("sgd", 0.0, None, 1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "optimizer",
            "lion",
            r"^TrainConfig: optimizer='lion'; not a known optimizer; choose from sgd, adamw, adamw8bit$",
        ),
        ("learning_rate", 0, r"learning_rate=0; learning_rate > 0, and finite; give learning_rate > 0$"),
        ("learning_rate", math.nan, "learning_rate=nan; "),
        ("weight_decay", -0.1, r"weight_decay=-0.1; weight_decay >= 0, and finite; give weight_decay >= 0$"),
        ("adam_eps", 0.0, r"adam_eps=0.0; adam_eps > 0, and finite; give adam_eps > 0$"),
        ("max_norm", 0.0, r"max_norm=0.0; max_norm > 0, and finite; give max_norm > 0$"),
        ("max_norm", math.inf, "max_norm=inf; "),
        ("accumulation", 0, r"accumulation=0; a step takes whole micro-batches, at least one; give accumulation >= 1$"),
        ("accumulation", 1.5, "accumulation=1.5; "),
    ],
)
def test_each_field_is_checked(field, value, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{field: value})
