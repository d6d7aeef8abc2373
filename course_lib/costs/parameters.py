"""Exact parameter counts of a decoder of the Llama shape."""

from __future__ import annotations

from course_lib.config import ModelConfig


def layer_parameters(config: ModelConfig) -> int:
    """Parameters of one decoder layer: attention, SwiGLU and the two norms before them."""
    H, kv, ffn = config.hidden_size, config.kv_size, config.ffn_size
    attention = 2 * H * H + 2 * H * kv  # query and output; key and value
    feed_forward = 3 * H * ffn  # gate, up, down
    return attention + feed_forward + 2 * H


def model_parameters(config: ModelConfig) -> int:
    """Parameters of the whole model: embedding, layers, last norm, and the output head unless it is tied."""
    embedding = config.vocab_size * config.hidden_size
    head = 0 if config.tied else embedding
    return embedding + config.n_layers * layer_parameters(config) + config.hidden_size + head
