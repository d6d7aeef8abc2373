"""Questions about one device: what fills it, how long it takes, what it can refuse to keep. Lessons 01 and 11."""

from __future__ import annotations

from course_lib.config import load_model
from course_lib.costs.model.activations import checkpointed_activations
from course_lib.costs.model.adapters import Adapters, nf4_bytes
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.flops import (
    chinchilla_tokens,
    gpu_hours,
    rule_of_thumb_flops,
    training_seconds,
    utilisation,
)
from course_lib.costs.model.states import gpus_needed, state_bytes
from course_lib.units import GB, MB, GiB
from tools.exam.question import Question

TERA, BILLION, DAY_S = 1e12, 10**9, 86_400
_FAMILIES = ("llama3_1_8b", "llama3_1_70b", "llama_7b", "llama_13b")


def _states(billions: int, counted: str) -> float:
    return state_bytes(billions * BILLION, find_convention(counted)).total / GB


def _days(billions: int, trillions: int, gpus: int, tflops: int, percent: int) -> float:
    flops = rule_of_thumb_flops(billions * BILLION, trillions * TERA)
    peak = tflops * TERA
    return training_seconds(flops=flops, gpus=gpus, peak_flops_per_s=peak, utilisation=percent / 100) / DAY_S


def _mfu(billions: int, tokens_per_s: int, tflops: int) -> float:
    flops = rule_of_thumb_flops(billions * BILLION, tokens_per_s)
    return utilisation(flops=flops, seconds=1, gpus=1, peak_flops_per_s=tflops * TERA)


def _inputs_kept(model: str, sequence: int) -> float:
    config = load_model(model)
    kept = checkpointed_activations(config, batch=1, sequence=sequence, itemsize=2)
    return config.n_layers * sum(saved.nbytes for saved in kept) / GiB


QUESTIONS = (
    Question(
        key="01a",
        text="A model of {billions} billion parameters is trained with Adam in mixed precision: weights and gradients "
        "in 16 bits, a second copy of the weights and two moments in 32. How much do these states take?",
        given={"billions": (3, 5, 7, 13, 30, 70)},
        answer=lambda billions: _states(billions, "zero"),
        unit="GB",
    ),
    Question(
        key="01b",
        text="A model of {billions} billion parameters is trained in 32 bits throughout: weights, gradients and "
        "Adam's two moments. How much do these states take?",
        given={"billions": (3, 5, 7, 13, 30, 70)},
        answer=lambda billions: _states(billions, "fp32"),
        unit="GB",
    ),
    Question(
        key="01c",
        text="The states of a training take {gigabytes} GB, and nothing else is counted. On how few GPUs of {each} GB "
        "do they fit, if all of it is shared out?",
        given={"gigabytes": (112, 208, 480, 914, 1120), "each": (24, 40, 80)},
        answer=lambda gigabytes, each: gpus_needed(gigabytes * GB, each * GB),
        unit="GPUs",
    ),
    Question(
        key="01d",
        text="{gpus} GPUs with a dense peak of {tflops} TFLOP/s reach {percent} % of it. How long do they train "
        "{billions} billion parameters on {trillions} trillion tokens, by 6PT?",
        given={
            "gpus": (256, 512, 1024),
            "tflops": (312, 989),
            "percent": (30, 40, 50),
            "billions": (7, 13, 70),
            "trillions": (1, 2, 3),
        },
        answer=_days,
        unit="days",
    ),
    Question(
        key="01e",
        text="One GPU with a dense peak of {tflops} TFLOP/s trains a model of {billions} billion parameters at "
        "{tokens_per_s} tokens per second. What is its MFU, as a share between 0 and 1, by 6PT?",
        given={"tflops": (312, 989), "billions": (1, 7), "tokens_per_s": (2000, 3000, 4000)},
        answer=_mfu,
        unit="",
    ),
    Question(
        key="01f",
        text="About how many tokens make best use of the compute that is spent on {billions} billion parameters, by "
        "Chinchilla's rule?",
        given={"billions": (1, 3, 7, 13, 65, 70)},
        answer=lambda billions: chinchilla_tokens(billions * BILLION) / BILLION,
        unit="billions of tokens",
    ),
    Question(
        key="01g",
        text="A run takes {gpus} GPUs for {days} days. What does it cost at {price} dollars for the hour of one GPU?",
        given={"gpus": (64, 128, 384), "days": (5, 10, 21), "price": (2, 3, 4)},
        answer=lambda gpus, days, price: price * gpu_hours(gpus=gpus, seconds=days * DAY_S),
        unit="dollars",
    ),
    Question(
        key="11a",
        text="LoRA of rank {rank} is put beside one square matrix of {wide} by {wide}. How many numbers are trained?",
        given={"rank": (4, 8, 16, 32), "wide": (2048, 4096, 8192)},
        answer=lambda rank, wide: rank * (wide + wide),
        unit="numbers",
    ),
    Question(
        key="11b",
        text="A matrix of {millions} million numbers is kept in 4 bits, with a scale of 32 bits for each 64 numbers "
        "and nothing else. How much does it take?",
        given={"millions": (16, 32, 64, 128)},
        answer=lambda millions: nf4_bytes(millions * 10**6, double=False) / MB,
        unit="MB",
    ),
    Question(
        key="11c",
        text="Every layer of {model} keeps its input alone, in bf16, and computes the rest again in backward. How much "
        "do these inputs take for one sequence of {sequence} tokens? The model has {layers} layers, {wide} wide.",
        given={"model": _FAMILIES, "sequence": (2048, 4096, 8192)},
        answer=_inputs_kept,
        unit="GiB",
        also=lambda model, sequence: {
            "model": load_model(model).name,
            "layers": load_model(model).n_layers,
            "wide": load_model(model).hidden_size,
        },
    ),
    Question(
        key="11d",
        text="LoRA of rank {rank} is put beside the queries' and the values' matrix in every layer of Llama 3.1 8B: "
        "32 layers, 4096 wide, with 1024 values. How many numbers are trained?",
        given={"rank": (4, 8, 16, 64)},
        answer=lambda rank: Adapters(rank=rank, maps=("q_proj", "v_proj")).parameters(load_model("llama3_1_8b")),
        unit="numbers",
    ),
)
