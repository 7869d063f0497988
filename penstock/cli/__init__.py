"""The `penstock` command: arguments in, exit code out; what is decided, is decided elsewhere."""


def main() -> None:
    """Run the command line of this process."""
    from penstock.cli.root import run

    run()
