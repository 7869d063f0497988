"""The end of a process that does not end by itself."""

import subprocess
import sys

TWO_ENDS = """
import threading
from penstock.node.last_end import end_within
from penstock.node.logs import set_up_logs
set_up_logs()
end_within(0.3, "the one", exit_code={0})
end_within(0.3, "the other", exit_code={1})
threading.Event().wait()
"""


def test_of_two_ends_at_once_one_is_told_and_the_higher_code_counts() -> None:
    for codes in ((0, 1), (1, 0)):
        ran = subprocess.run(
            [sys.executable, "-c", TWO_ENDS.format(*codes)], capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode == 1
        assert ran.stderr.count("node.ended_hard") == 1
