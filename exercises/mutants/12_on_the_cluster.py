"""Plausible wrong answers to the exercises of module 12, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 12.1 ------------------------------------------------------------------------------------------------------------

PORT = 'str(20000 + int(variables["SLURM_JOB_ID"]) % 10000)'

WRONG["12.1", "even"] = {
    "returned dict, not two things: a dict of variables, and a list of hosts": {"    }, hosts": "    }"},
    "returned str in second place, not a list of hosts": {"    }, hosts": "    }, ','.join(hosts)"},
    "MASTER_PORT is of type int: os.environ takes text alone": {PORT: PORT.removeprefix("str")},
    "that is the job's id, and a port is below 65,536": {PORT: 'variables["SLURM_JOB_ID"]'},
    "LOCAL_RANK is not among the variables": {'"LOCAL_RANK"': '"LOCALRANK"'},
    ": that is SLURM_LOCALID": {'"RANK": variables["SLURM_PROCID"]': '"RANK": variables["SLURM_LOCALID"]'},
    "the zeros in front of a node's number are lost: it is node03, not node3": {"{number:0{len(first)}}": "{number}"},
}

# 12.3 ------------------------------------------------------------------------------------------------------------

WRONG["12.3", "missing"] = {
    "returned str, not None or four things: how, the rank, the operation, and the place": {
        'return "missing", rank, missed, place(dumps[rank]["entries"][-1])': 'return "missing"'
    },
    "the right rank, but it is said to stray by 'absent', which is none of missing, operation, size": {
        'return "missing"': 'return "absent"'
    },
    "returned None, but a rank strays, in a way that is called 'missing'": {
        "return None": "return None",
        "for name, members in groups.items():": "for name, members in {}.items():",
    },
    "waits in a call itself": {"if rank not in made and not waiting[rank]": "if waiting[rank]"},
    "but no rank strays: each call that has not come back was made by all of its group": {
        "    return None": '    return "size", 0, "gloo:all_reduce", ""'
    },
}
WRONG["12.3", "odd"] = {
    "the right rank, but it is said to stray by 'operation'; it is not that": {
        '("size", "input_sizes")': '("operation", "input_sizes")'
    },
    "what most ranks of its group have called": {"usual = max(values": "usual = min(values"},
}
WRONG["12.3", "groups"] = {
    "that rank is missed, but it waits itself, in another group: it is a victim": {" and not waiting[rank]": ""},
}
