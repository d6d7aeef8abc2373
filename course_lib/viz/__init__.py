"""Figures and widgets of the course: each is one call that returns a `Picture` with a text alternative."""

from __future__ import annotations

from course_lib.viz.anatomy import plot_anatomy
from course_lib.viz.anatomy_row import plot_anatomy_row
from course_lib.viz.bandwidth import plot_bandwidth, plot_fit
from course_lib.viz.buckets import plot_buckets
from course_lib.viz.chunks import primitives_overview, who_holds_what
from course_lib.viz.cost_bars import plot_cost_bars
from course_lib.viz.cost_lines import plot_cost_lines
from course_lib.viz.float_bits import float_bits, float_bits_explorer
from course_lib.viz.gradients import plot_gradients
from course_lib.viz.held import plot_held
from course_lib.viz.idle import plot_idle
from course_lib.viz.loss_curves import plot_loss_curves
from course_lib.viz.matrix import plot_bytes_matrix
from course_lib.viz.memory import memory_explorer, plot_gpu_memory
from course_lib.viz.messages import plot_messages
from course_lib.viz.mlp import plot_mlp
from course_lib.viz.overlap import plot_overlap
from course_lib.viz.picture import Picture
from course_lib.viz.ranks import plot_ranks
from course_lib.viz.ring import ring_all_reduce_step, ring_all_reduce_story
from course_lib.viz.scaling import plot_scaling
from course_lib.viz.schedule_explorer import schedule_explorer
from course_lib.viz.schedule_run import plot_schedule_run
from course_lib.viz.schedules import plot_schedule, plot_schedules
from course_lib.viz.source import show_source
from course_lib.viz.speedup import plot_speedup
from course_lib.viz.stepper import ring_stepper
from course_lib.viz.timeline import plot_timeline
from course_lib.viz.topology import plot_topology

__all__ = [
    "Picture",
    "float_bits",
    "float_bits_explorer",
    "memory_explorer",
    "plot_anatomy",
    "plot_anatomy_row",
    "plot_bandwidth",
    "plot_buckets",
    "plot_bytes_matrix",
    "plot_cost_bars",
    "plot_cost_lines",
    "plot_fit",
    "plot_gpu_memory",
    "plot_gradients",
    "plot_held",
    "plot_idle",
    "plot_loss_curves",
    "plot_messages",
    "plot_mlp",
    "plot_overlap",
    "plot_ranks",
    "plot_scaling",
    "plot_schedule",
    "plot_schedule_run",
    "plot_schedules",
    "plot_speedup",
    "plot_timeline",
    "plot_topology",
    "primitives_overview",
    "ring_all_reduce_step",
    "ring_all_reduce_story",
    "ring_stepper",
    "schedule_explorer",
    "show_source",
    "who_holds_what",
]
