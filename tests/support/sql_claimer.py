"""Claims rows of the table `prizes`, a few at a time, and prints their keys. `python -m tests.support.sql_claimer
DATABASE MOST`: DATABASE is a SQLite file or a PostgreSQL address. `MOST`: claims no more than so many, and then waits
to be killed. 0: all, and ends."""

import sqlite3
import sys
from typing import Any

import penstock.sql

LIMIT = 7


def opened(database: str) -> Any:
    if not database.startswith("postgresql"):
        return sqlite3.connect(database, timeout=60)
    import psycopg

    return psycopg.connect(database)


def main(database: str, most: int) -> None:
    connection = opened(database)
    prizes = penstock.sql.Table("prizes", waiting={"state": "new"}, lease="1h")
    print("ready", flush=True)
    sys.stdin.readline()
    claimed = 0
    while pairs := prizes.claim(connection, min(LIMIT, most - claimed) if most else LIMIT):
        print(*(key for key, _ in pairs), flush=True)
        claimed += len(pairs)
        if claimed == most:
            break
    connection.close()
    if most:
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
