"""What each step took, and what came of it: the line that is shown, and a line of JSON in the folder of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from course_lib.cli.train_config import TrainRun
from course_lib.costs.model.flops import training_flops
from course_lib.gauges.run_log import METRICS
from course_lib.hardware import device_called
from course_lib.ranks.devices import Choice
from course_lib.training.checkpoint import replaced
from course_lib.training.loop import Step
from course_lib.units import format_bytes

_MEMORY = {"cpu": "peak RSS", "cuda": "peak GPU memory"}  # what the loop measures
_FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}  # of data sheets; of float64 they are not asked


class Metrics:
    """The steps of a run in words and in numbers, as its first rank saw them."""

    def __init__(self, run: TrainRun, choice: Choice) -> None:
        self._run, self._memory = run, _MEMORY[choice.device.type]
        self._peak = _peak_flops_per_s(run, choice)

    def begin(self, folder: Path, steps: Sequence[Step]) -> None:
        """Write the steps that are done; whatever came after the checkpoint that has them is dropped."""
        with replaced(folder / METRICS) as file:
            file.write(b"".join(map(self._line, steps)))

    def append(self, folder: Path, step: Step) -> None:
        """Write one more, in one go: a run that is killed leaves whole lines."""
        with open(folder / METRICS, "ab", buffering=0) as file:
            file.write(self._line(step))

    def _line(self, step: Step) -> bytes:
        values: dict[str, Any] = {
            "step": step.number,
            "loss": step.loss,
            "learning_rate": step.learning_rate,
            "gradient_norm": step.norm if isfinite(step.norm) else None,  # JSON has no other word
            "tokens_per_s": step.tokens_per_s,
            "seconds": step.seconds,
            "memory_bytes": step.memory_bytes,
            "memory": self._memory,
        }
        if (share := self.mfu(step)) is not None:
            values["mfu"] = share
        if step.own_s:
            values["own_s"] = list(step.own_s)  # of each rank, in every tenth step
        return f"{json.dumps(values)}\n".encode()

    def mfu(self, step: Step) -> float | None:
        """Model FLOPs utilisation: the share of all devices' peak that the model's own operations take, if it is known.

        Source: Chowdhery et al. 2022, PaLM, section 4.1.
        """
        if self._peak is None:
            return None
        per_token = training_flops(self._run.model, sequence=self._run.sequence)
        return per_token * step.tokens_per_s / (self._run.ranks * self._peak)

    def progress(self, step: Step) -> str:
        """One step in a line; the memory is this rank's."""
        share = self.mfu(step)
        return "  ".join(
            [
                f"step {step.number:>{len(str(self._run.steps))}}/{self._run.steps}",
                f"loss {step.loss:.6f}",
                f"{step.tokens_per_s:,.0f} tokens/s",
                *([] if share is None else [f"MFU {share:.1%}"]),
                f"rank 0: {self._memory} {format_bytes(step.memory_bytes)}",
            ]
        )


def _peak_flops_per_s(run: TrainRun, choice: Choice) -> float | None:
    """Of one device, for the numbers that are multiplied; None where no data sheet says it."""
    if choice.device.type != "cuda":
        return None
    device = device_called(torch.cuda.get_device_name(choice.device))
    return None if device is None else device.dense_flops_per_s.get(_FORMATS.get(run.precision.computed, ""))
