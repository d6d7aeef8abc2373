"""Which commands there are; what stops one is said in a line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from course_lib import presets

_COMMANDS = {  # name -> what it is for, what it is told; all of it is name=value
    "sweep": (
        "compute the memory of every legal way to spread a model over GPUs",
        "model=NAME or a folder of Hugging Face (needed), device=NAME, convention=NAME, out=FILE.csv, sequence, "
        "global_batch, token_imbalance, a field of the model or device as in model.n_layers=8, "
        "and what is combined: gpus, tp, pp, ep, cp, zero_stages, microbatches, as in tp=[1,2]",
    ),
    "plan": (
        "search the best way to train a model on a cluster, and say why",
        "model=NAME or a folder of Hugging Face (needed), cluster=NAME (needed; cluster.n_nodes=2048), batch "
        "(sequences of a step), sequence, retime=100 (how many are timed again on their instruction lists), "
        "out=FILE.json, train=FOLDER to train the winner's small likeness here, a field of the model or cluster, and "
        "what is combined: tp, pp, cp, ep, zero_stage, micro_batch, recompute, schedule, stages_per_rank, as in "
        "tp=[1,2]",
    ),
    "train": (
        "train a small decoder, or your own, on one device or on ranks",
        "model=NAME or a folder of Hugging Face, text=FILE, "
        "dp, pp and tp (their product is the number of ranks, its own or torchrun's), engine=own or "
        "torch, for dp that shares zero_stage=1, 2 or 3, policy=by_block, by_block_and_size, by_block_group or "
        "size_based, policy_size, strategy=FULL_SHARD, SHARD_GRAD_OP, NO_SHARD or HYBRID_SHARD and its shards, "
        "param_dtype=bfloat16, offload=cpu, for a pipeline schedule=gpipe, 1f1b, interleaved or zb-h1, microbatches "
        "and stages_per_rank, steps, batch (sequences of all ranks together), sequence, optimizer=sgd or adamw, lr, "
        "lr_schedule=constant or cosine, warmup_steps, recompute=true, weight_decay, max_norm, accumulation, "
        "dtype=float32 or float64, seed, out=FOLDER, checkpoint_every=100 (steps) or 10min, a field of the model as "
        "in model.n_layers=8",
    ),
    "doctor": (
        "say before training what would go wrong, and which flags help",
        f"device, one of {', '.join(presets.names('device'))}; and what train takes",
    ),
    "slurm": (
        "print an sbatch file that trains on a cluster",
        f"job=NAME, one of {', '.join(presets.names('job'))}; nodes, gpus_per_node, cpus_per_task, mem, time and "
        "partition as sbatch takes them; and what train takes",
    ),
    "verify": (
        "prove that a trainer of yours computes on ranks what it computes on one device, or say what it does instead",
        "my_file:reference and my_file:parallel (needed; functions that make the trainers), ranks=2 (needed without "
        "torchrun), batches=my_file:batches, dtype=float64 or float32, out=FOLDER for report.json, report.txt and "
        "ladder.svg",
    ),
    "predict": (
        "predict step time and memory of published runs, or of your own",
        "runs=FILE.json (needed; rows in the schema of published runs), out=FILE.csv (needed), and "
        "calibrate=MY_RUNS.json, some measured rows of your own cluster that rescale the others",
    ),
    "calibrate": (
        "fit the simulator's constants to the published runs, and test them on runs that were left out",
        "out=FOLDER for constants.json and errors.csv; without it nothing is written",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0 good, 1 a proof failed or a run would, 2 not possible as asked."""
    try:
        return run(_parser().parse_args(arguments))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"interrupted{interrupt}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    """The commands, with what each is told."""
    parser = argparse.ArgumentParser(prog="python -m course_lib", description="the course without its notebooks")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    command = commands.add_parser("tour", help="run every technique on real ranks and print one proof table")
    command.add_argument("--ranks", type=int, default=4, help="number of processes (default 4)")
    for name, (about, overrides) in _COMMANDS.items():
        one = commands.add_parser(name, help=about)
        one.add_argument("overrides", nargs="*", metavar="name=value", help=overrides)
    return parser


def run(chosen: argparse.Namespace) -> int:
    """Run the chosen command; only its own imports, for torch takes longer to load than a sweep to run."""
    if chosen.command == "sweep":
        from course_lib.cli.sweep import sweep

        return sweep(chosen.overrides)
    if chosen.command == "plan":
        from course_lib.cli.plan import plan_command

        return plan_command(chosen.overrides)
    if chosen.command == "train":
        from course_lib.cli.train import train_command

        return train_command(chosen.overrides)
    if chosen.command == "doctor":
        from course_lib.cli.doctor import doctor_command

        return doctor_command(chosen.overrides)
    if chosen.command == "slurm":
        from course_lib.cli.slurm import slurm_command

        return slurm_command(chosen.overrides)
    if chosen.command == "verify":
        from course_lib.cli.verify import verify_command

        return verify_command(chosen.overrides)
    if chosen.command == "predict":
        from course_lib.cli.predict import predict_command

        return predict_command(chosen.overrides)
    if chosen.command == "calibrate":
        from course_lib.cli.calibrate import calibrate_command

        return calibrate_command(chosen.overrides)
    from course_lib.cli.tour import tour

    return tour(chosen.ranks)
