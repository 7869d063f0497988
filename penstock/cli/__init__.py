"""The `penstock` command: arguments in, exit code out. Other packages decide everything."""

import sys
import threading


def main() -> None:
    """Run the command line of this process."""
    try:
        from penstock.cli.root import run

        run()
    except KeyboardInterrupt:  # while it still imports. Later each command has its own end
        sys.exit(130)
    except SystemExit as end:
        if threading.active_count() > 1:
            from penstock.node.last_end import end_despite_threads

            end_despite_threads(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
