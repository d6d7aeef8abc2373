"""Exercise checks: `check`, `grade`, `hint`, `save_script`, scored predictions."""

from course_lib.garbage import overlooked

with overlooked():  # with PyTorch, where a page begins with this
    from course_lib.checks.kit import untouched
    from course_lib.checks.kit.engine import check, grade
    from course_lib.checks.kit.hints import hint
    from course_lib.checks.kit.own_folder import save_script
    from course_lib.checks.kit.registry import given
    from course_lib.checks.kit.result import CheckResult
    from course_lib.checks.predict import predict, score

untouched.remember()
