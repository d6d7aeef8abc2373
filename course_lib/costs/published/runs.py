"""Training runs as they were published, to compute their utilisation from."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.costs.model.flops import rule_of_thumb_flops, utilisation
from course_lib.hardware import Device, load_device

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run whose length is known."""

    name: str
    parameters: float  # as published
    tokens: float
    gpus: int
    device: Device
    seconds: float
    source: str

    def model_utilisation(self) -> float:
        """MFU: 6PT over what the GPUs could have done, dense."""
        return self._share(recompute=False)

    def hardware_utilisation(self) -> float:
        """HFU if everything was recomputed: 8PT over what the GPUs could have done, dense."""
        return self._share(recompute=True)

    def _share(self, *, recompute: bool) -> float:
        return utilisation(
            flops=rule_of_thumb_flops(self.parameters, self.tokens, recompute=recompute),
            seconds=self.seconds,
            gpus=self.gpus,
            peak_flops_per_s=self.device.peak_flops_per_s(),
        )


GPT3_PROJECTED = TrainingRun(
    name="GPT-3 175B, in Yuan's talk",
    parameters=175e9,
    tokens=300e9,
    gpus=1024,
    device=load_device("a100_sxm_80"),
    seconds=35 * DAY_S,
    source=(
        "K. Yuan 2024, talk on distributed training for LLM: 35 days, as OpenAI's; it is the projection on A100s of "
        "Narayanan et al. 2021, section 5.1, which prints 34 days at 140 TFLOP/s per GPU; OpenAI trained on V100s"
    ),
)
LLAMA_65B = TrainingRun(
    name="LLaMA 65B",
    parameters=65.2e9,
    tokens=1.4e12,
    gpus=2048,
    device=load_device("a100_sxm_80"),
    seconds=21 * DAY_S,
    source="Touvron et al. 2023, LLaMA, section 2.4 and Table 2",
)


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """One row of Megatron's table of weak scaling, with full recompute on A100s."""

    preset: str
    tp: int
    pp: int
    gpus: int
    batch: int
    flops_per_s: float  # of one GPU, the hardware's: what is recomputed counts
    percent_of_peak: int  # as printed
    petaflops_per_s: float  # of all GPUs, as printed


# Narayanan et al. 2021, Table 1; sequences of 2048 tokens.
_TABLE_1 = (  # preset, tp, pp, GPUs, batch, TFLOP/s of one GPU, % of peak, PFLOP/s of all
    ("1_7b", 1, 1, 32, 512, 137, 44, 4.4),
    ("3_6b", 2, 1, 64, 512, 138, 44, 8.8),
    ("7_5b", 4, 1, 128, 512, 142, 46, 18.2),
    ("18_4b", 8, 1, 256, 1024, 135, 43, 34.6),
    ("39_1b", 8, 2, 512, 1536, 138, 44, 70.8),
    ("76_1b", 8, 4, 1024, 1792, 140, 45, 143.8),
    ("145_6b", 8, 8, 1536, 2304, 148, 47, 227.1),
    ("310_1b", 8, 16, 1920, 2160, 155, 50, 297.4),
    ("529_6b", 8, 35, 2520, 2520, 163, 52, 410.2),
    ("1008b", 8, 64, 3072, 3072, 163, 52, 502.0),
)
MEGATRON_TABLE = tuple(
    MeasuredRow(
        preset=f"megatron_{size}",
        tp=tp,
        pp=pp,
        gpus=gpus,
        batch=batch,
        flops_per_s=teraflops * 1e12,
        percent_of_peak=percent,
        petaflops_per_s=petaflops,
    )
    for size, tp, pp, gpus, batch, teraflops, percent, petaflops in _TABLE_1
)
# Meta 2024-04, Introducing Meta Llama 3: "over 400 TFLOPS per GPU" on 16K H100s, the model's operations.
LLAMA_3_FLOPS_PER_S = 400e12
# Shoeybi et al. 2019, Megatron-LM, abstract and section 5.1: V100s; one GPU alone reached 39 TFLOP/s.
MEGATRON_2019_FLOPS_PER_S = 15.1e15
MEGATRON_2019_GPUS = 512
MEGATRON_2019_ALONE_FLOPS_PER_S = 39e12
# Touvron et al. 2023, LLaMA, Table 2: tokens by preset.
LLAMA_TOKENS = {"llama_7b": 1.0e12, "llama_13b": 1.0e12, "llama_33b": 1.4e12, "llama_65b": 1.4e12}
