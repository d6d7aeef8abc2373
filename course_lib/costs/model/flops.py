"""Floating-point operations of training, and what follows from them: time, utilisation, the right number of tokens.

One multiplication and one addition are two operations. Backward takes twice as many as forward.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal, NamedTuple, get_args

from course_lib.config import ModelConfig
from course_lib.costs.model.parameters import layer_weights
from course_lib.errors import four_parts

FlopsRecompute = Literal["none", "selective", "full"]
CHINCHILLA_RATIO = 20  # tokens for each parameter


class ForwardFlops(NamedTuple):
    """Operations of one token's forward pass, by what does them."""

    matrices: int  # of the layers; of experts those that the token passes
    scores: float  # of attention: queries with keys, probabilities with values
    head: int

    @property
    def total(self) -> float:
        """All of them."""
        return self.matrices + self.scores + self.head


def forward_flops(config: ModelConfig, *, sequence: int, causal: bool = False) -> ForwardFlops:
    """Operations of one token in a sequence of S: two for each number of a matrix, 4SAD for each layer's scores.

    `causal` counts only the scores that the mask leaves, (S + 1)/2 instead of S; the papers count all. In layers with
    a window no token sees more than that. Looking up an embedding, norms, softmax and activations are left out.
    Source: Narayanan et al. 2021, appendix.
    Raises: ValueError for a sequence below 1.
    """
    _check_positive("forward_flops", sequence=sequence)
    whole, windowed = (_seen(sequence, window, causal) for window in (sequence, config.window or sequence))
    seen = whole * (config.n_layers - config.windowed_layers) + windowed * config.windowed_layers
    return ForwardFlops(
        matrices=2 * sum(count * _multiplied_parameters(kind) for count, kind in config.layer_kinds),
        scores=2 * seen * (config.query_size + config.mixed_size),
        head=2 * config.hidden_size * config.vocab_size,
    )


def training_flops(
    config: ModelConfig, *, sequence: int, recompute: FlopsRecompute = "none", causal: bool = False
) -> float:
    """Operations to train on one token: three forward passes, and what is recomputed.

    Full recompute repeats the layers' forward pass, selective recompute the scores; the head is never repeated.
    Without recompute these are the model's operations, with it the hardware's.
    Source: Narayanan et al. 2021, appendix; Korthikanti et al. 2022, section 5 (selective recompute).
    Raises: ValueError for an unknown way to recompute.
    """
    if recompute not in get_args(FlopsRecompute):
        way_out = f"choose one of {', '.join(get_args(FlopsRecompute))}"
        raise ValueError(four_parts("training_flops", f"recompute={recompute!r}", "not a known way", way_out))
    forward = forward_flops(config, sequence=sequence, causal=causal)
    again = {"none": 0.0, "selective": forward.scores, "full": forward.matrices + forward.scores}
    return 3 * forward.total + again[recompute]


def rule_of_thumb_flops(parameters: float, tokens: float, *, recompute: bool = False) -> float:
    """6PT, or 8PT if everything is recomputed: 2 for forward, 4 for backward, 2 again.

    Leaves out the scores of attention; for experts P is what a token meets.
    Source: Kaplan et al. 2020, section 2.1; Narayanan et al. 2021, equation 4 (8PT).
    """
    return (8 if recompute else 6) * parameters * tokens


def megatron_flops(config: ModelConfig, *, batch: int, sequence: int) -> float:
    """96BsLh^2 (1 + s/(6h) + V/(16Lh)): one step with full recompute.

    Assumes a GPT with a feed-forward block of 4h.
    Source: Narayanan et al. 2021, equation 3.
    """
    L, h, V, s = config.n_layers, config.hidden_size, config.vocab_size, sequence
    return 96 * batch * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h))


def training_seconds(*, flops: float, gpus: int, peak_flops_per_s: float, utilisation: float) -> float:
    """Time of `flops` on so many GPUs that reach a share of their peak: 6PT/(NFU).

    Take 6PT with the model's utilisation or 8PT with the hardware's; mixing them is off by a third.
    Raises: ValueError for a utilisation outside 0..1, or a size that is not positive.
    """
    _check_positive("training_seconds", flops=flops, gpus=gpus, peak_flops_per_s=peak_flops_per_s)
    if not 0 < utilisation <= 1:
        rule, way_out = "a share of the peak is above 0 and at most 1", "0.3 to 0.55 is usual"
        raise ValueError(four_parts("training_seconds", f"utilisation={utilisation}", rule, way_out))
    return flops / (gpus * peak_flops_per_s * utilisation)


def utilisation(*, flops: float, seconds: float, gpus: int, peak_flops_per_s: float) -> float:
    """Share of the dense peak: the model's (MFU) from 6PT, the hardware's (HFU) with what is recomputed.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    Raises: ValueError for a size that is not positive.
    """
    _check_positive("utilisation", flops=flops, seconds=seconds, gpus=gpus, peak_flops_per_s=peak_flops_per_s)
    return flops / (seconds * gpus * peak_flops_per_s)


def gpu_hours(*, gpus: int, seconds: float) -> float:
    """What a run costs, whatever the price of an hour."""
    return gpus * seconds / 3600


def chinchilla_tokens(parameters: float) -> float:
    """The tokens that make best use of the compute spent on so many parameters: about 20 for each.

    Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, Table 3.
    """
    return CHINCHILLA_RATIO * parameters


def chinchilla_model(flops: float) -> tuple[float, float]:
    """Parameters and tokens for a budget of 6PT operations: P = sqrt(flops/120), T = 20P.

    Source: as `chinchilla_tokens`.
    """
    parameters = sqrt(flops / (6 * CHINCHILLA_RATIO))
    return parameters, chinchilla_tokens(parameters)


def _seen(sequence: int, window: int, causal: bool) -> float:
    """Tokens that a token of a sequence sees on average: the first ones see fewer, under a mask, than a window has."""
    window = min(window, sequence)
    return window - (window * (window - 1) / 2 / sequence if causal else 0)


def _multiplied_parameters(config: ModelConfig) -> int:
    """Numbers of one layer's matrices that a token is multiplied with."""
    matrices = [weight for weight in layer_weights(config) if len(weight.shape) == 2]
    experts = sum(weight.parameters for weight in matrices if weight.name.startswith("ffn."))
    others = sum(weight.parameters for weight in matrices) - experts
    return others + experts * config.experts_per_token // config.n_experts


def _check_positive(operation: str, **sizes: float) -> None:
    for name, size in sizes.items():
        if size <= 0:
            raise ValueError(four_parts(operation, f"{name}={size:g}", f"{name} is positive", f"give {name} > 0"))
