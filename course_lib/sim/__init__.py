"""How long a training step takes, and whether it fits: by closed form for many policies, exactly for one. No torch.

policies    many ways to spread a step, in arrays        machine, constants, rates    how fast a cluster is
shape       a model in a few numbers                     layer, axes, step            the closed form
simulate    the door: model, cluster, policies -> times, memory, what they are bound by
"""

from __future__ import annotations

from course_lib.door import all_names

__getattr__, __dir__ = all_names(__name__, "*.py")
