"""The `penstock` command: arguments in, exit code out. Other packages decide everything."""

import sys


def main() -> None:
    """Run the command line of this process."""
    try:
        from penstock.cli.root import run

        run()
    except KeyboardInterrupt:  # while it still imports. Later each command has its own end
        sys.exit(130)
