"""What an answer, or a cell, may leave in its process; and what another one would see of it."""

from __future__ import annotations

IMPORTS = """
import copy, gc, importlib, math, os, random, signal, socket, sys, threading, time, warnings
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from course_lib import comm
from course_lib.comm import switches
"""

BOTH = {  # what is done, and what is seen
    "grad mode": ("torch.set_grad_enabled(False)", "torch.is_grad_enabled()"),
    "inference mode": (
        "torch.kept = torch.inference_mode(); torch.kept.__enter__()",
        "torch.ones(1, requires_grad=True).is_inference()",
    ),
    "default dtype": ("torch.set_default_dtype(torch.float64)", "str(torch.ones(1).dtype)"),
    "default device": ("torch.set_default_device('meta')", "str(torch.ones(1).device)"),
    "a device that was entered": ("torch.device('meta').__enter__()", "str(torch.ones(1).device)"),
    "a mode of PyTorch's kernels": (
        "from torch.utils.flop_counter import FlopCounterMode; FlopCounterMode(display=False).__enter__()",
        "torch._C._len_torch_dispatch_stack()",
    ),
    "determinism": ("torch.use_deterministic_algorithms(True)", "torch.are_deterministic_algorithms_enabled()"),
    "determinism that warns": (
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "torch.get_deterministic_debug_mode()",
    ),
    "threads": ("torch.set_num_threads(5)", "torch.get_num_threads()"),
    "precision": ("torch.set_float32_matmul_precision('medium')", "torch.get_float32_matmul_precision()"),
    "tiny values": ("torch.set_flush_denormal(True)", "float('1e-310') * random.choice([1.0]) > 0"),
    "autocast": (
        "torch.autocast('cpu', torch.bfloat16).__enter__()",
        "str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)",
    ),
    "anomaly detection": ("torch.autograd.set_detect_anomaly(True)", "torch.is_anomaly_enabled()"),
    "Python's numbers": ("random.seed(1)", "random.getstate()[1][:3]"),
    "NumPy's numbers": ("np.random.seed(1)", "np.random.get_state()[1][:3].tolist()"),
    "PyTorch's numbers": ("torch.manual_seed(1)", "torch.get_rng_state().tolist()[:40]"),
    "the environment": ("os.environ['OMP_NUM_THREADS'] = '77'", "os.environ.get('OMP_NUM_THREADS')"),
    "a variable that is gone": ("os.environ.pop('PATH')", "'PATH' in os.environ"),
    "the folder": ("os.chdir('/')", "os.getcwd()"),
    "the folder, which is gone": (
        "import tempfile; os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())",
        "os.stat('.').st_nlink > 0",
    ),
    "the umask": ("os.umask(0o777)", "[mask := os.umask(0o77), os.umask(mask)][0]"),
    "filters of warnings": ("warnings.simplefilter('error', DeprecationWarning)", "len(warnings.filters)"),
    "the depth of calls": ("sys.setrecursionlimit(400)", "sys.getrecursionlimit()"),
    "the garbage collector": ("gc.disable()", "gc.isenabled()"),
    "limits of sockets": ("socket.setdefaulttimeout(0.001)", "socket.getdefaulttimeout()"),
    "the guard": ("switches.kept = comm.settings(guard=False); switches.kept.__enter__()", "switches.active.guard"),
    "a function of torch": ("torch.matmul = None", "torch.matmul is None"),
    "a functional": ("F.linear = lambda *given: given[0]", "F.linear(torch.ones(2), torch.zeros(2, 2)).tolist()"),
    "a collective of torch": ("dist.all_reduce = lambda *given: None", "dist.all_reduce.__name__"),
    "a collective of the course": ("comm.all_reduce = lambda x, **given: x", "comm.all_reduce.__name__"),
    "a collective in its file": (
        "import course_lib.comm.collectives; comm.collectives.all_reduce = comm.all_reduce = lambda x, **given: x",
        "(comm.all_reduce.__name__, comm.collectives.all_reduce.__name__)",
    ),
    "a function that is gone": ("del F.softmax", "hasattr(F, 'softmax')"),
    "a method of tensors": ("torch.Tensor.sum = lambda x: 0", "float(torch.ones(3).sum())"),
    "an operator": ("torch.Tensor.__matmul__ = lambda x, y: x", "(torch.ones(2) @ torch.ones(2)).dim()"),
    "a method of modules": ("nn.Module.parameters = lambda self: iter(())", "len(list(nn.Linear(1, 1).parameters()))"),
    "a call of one kind": ("nn.Linear.__call__ = lambda self, x: x", "nn.Linear(2, 1)(torch.ones(2)).numel()"),
    "a kind of module": ("nn.Linear = nn.Identity", "nn.Linear.__name__"),
    "a hook of all modules": (
        "nn.modules.module.register_module_forward_hook(lambda module, given, out: out * 0 + 7)",
        "float(nn.Identity()(torch.ones(1)))",
    ),
    "a method of the course": (
        "from course_lib.comm.ledger import Ledger; Ledger.messages = lambda self, rank: 0",
        "importlib.import_module('course_lib.comm.ledger').Ledger.messages.__name__",
    ),
    "a constant of the course": (
        "from course_lib.checks.kit import spec; spec.FP32 = 2",
        "importlib.import_module('course_lib.checks.kit.spec').FP32",
    ),
    "a file that nobody had imported": (
        "importlib.import_module('course_lib.comm.pairwise').all_to_all = None",
        "vars(sys.modules.get('course_lib.comm.pairwise', comm)).get('all_to_all', 1) is None",
    ),
    "a function of Python": ("time.monotonic = lambda: 0", "time.monotonic() > 0"),
    "a built-in function": ("import builtins; builtins.sum = lambda *given: 0", "sum([1, 2])"),
    "what stands before a built-in one": (
        "import course_lib.comm.collectives as place; place.len = lambda x: 0",
        "'len' in vars(importlib.import_module('course_lib.comm.collectives'))",
    ),
    "an alarm": ("signal.setitimer(signal.ITIMER_REAL, 900)", "signal.getitimer(signal.ITIMER_REAL)[0] > 0"),
}
RANKS_ALONE = {  # the process of a notebook keeps these
    "a handler of signals": ("signal.signal(signal.SIGALRM, signal.SIG_IGN)", "signal.getsignal(signal.SIGALRM)"),
    "where modules are found": ("sys.path.insert(0, '/elsewhere')", "sys.path[0]"),
    "what is printed": ("sys.stdout = open(os.devnull, 'w')", "getattr(sys.stdout, 'name', '')"),
    "a thread": ("threading.Thread(target=time.sleep, args=(99,), daemon=True).start()", "threading.active_count()"),
    "a trace": ("sys.setprofile(lambda *given: None)", "sys.getprofile() is None"),
    "what is remembered for backward": (
        "torch.autograd.graph.saved_tensors_hooks(lambda x: x * 0, lambda x: x).__enter__()",
        "torch._C._autograd._top_saved_tensors_default_hooks(True) is None",
    ),
}
EVERYTHING = "\n".join(done for done, _ in {**BOTH, **RANKS_ALONE}.values())


def names():
    """What the texts above find."""
    found = {}
    exec(IMPORTS, found)
    return found


def leave(done):
    exec(done, names())


def leave_and_fail(done):
    exec(done, names())
    raise ValueError("a wrong answer")


def see(text):
    return eval(text, names())


def before_and_after(done, text):
    clean = see(text)
    leave(done)
    return clean, see(text)
