"""Runs in a submission's own folder, beside a copy of the library: a JSON line for each rung of its trainers."""

import json
import sys

from course_lib.checks.project.ladder import climb

if __name__ == "__main__":
    given = json.load(sys.stdin)
    for name, text in given["texts"].items():
        for climbed in climb(name, text, given["seed"]):
            print(json.dumps(climbed), flush=True)
