"""Says in one line when this Python cannot set up the course.

Written in the oldest common Python, so that every Python can read it; `make` runs it first.
"""

import sys

NEEDED = (3, 11)


def problem(version, has_venv, name):
    """Return one line that says what is missing and the way out, or an empty string."""
    shown = "%d.%d" % tuple(version[:2])
    if tuple(version[:2]) < NEEDED:
        needed = "%d.%d" % NEEDED
        return (
            "make: %s is Python %s; the course needs %s or newer; name another one, for instance: "
            "make lab PYTHON=python3.12" % (name, shown, needed)
        )
    if not has_venv:
        return (
            "make: %s (Python %s) cannot make environments, its venv or ensurepip is missing; on Debian "
            "and Ubuntu: sudo apt install python%s-venv" % (name, shown, shown)
        )
    return ""


def can_make_environments():
    """Whether `python -m venv` will work: Debian ships Python without ensurepip."""
    try:
        import ensurepip
        import venv
    except ImportError:
        return False
    return bool(venv and ensurepip)


if __name__ == "__main__":
    line = problem(sys.version_info, can_make_environments(), sys.executable or "python3")
    if line:
        sys.stderr.write(line + "\n")
        sys.exit(1)
