"""Exercise checks: `check`, `hint`, scored predictions."""

from course_lib.checks.engine import check
from course_lib.checks.hints import hint
from course_lib.checks.predict import predict, score
from course_lib.checks.registry import given
from course_lib.checks.result import CheckResult

__all__ = ["CheckResult", "check", "given", "hint", "predict", "score"]
