"""`python -m course_lib <command>`."""

import sys

from course_lib.cli import time_is_up
from course_lib.garbage import overlooked

if __name__ == "__main__":
    time_is_up.listen()
    with overlooked():
        from course_lib.cli.main import main  # whose imports take seconds

    sys.exit(main())
