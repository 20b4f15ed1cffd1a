"""`dra-gpu` as a later release would be: its journal has a column, a table and fields more. Run as a program."""

import sys

import msgspec

from dra_gpu.__main__ import main
from dra_gpu.claims import journal_file, record

FORMAT = (1, 9)
_LATER = ("CREATE TABLE IF NOT EXISTS later (thing TEXT NOT NULL) STRICT",)


def _with_a_newer_journal() -> None:
    encode, upgrade, create = record.encode_payload, journal_file._upgrade, journal_file._create

    def encode_payload(written: record.Record, writer: str) -> bytes:
        payload = msgspec.json.decode(encode(written, writer))
        payload["later"] = {"thing": 1}
        for step in payload["steps"]:
            step["later"] = True
        for one in payload.get("shares", ()):
            one["later"] = [1]
        return msgspec.json.encode(payload)

    def add(path) -> None:
        connection = journal_file.connect(path)
        connection.execute("BEGIN IMMEDIATE")
        for statement in _LATER:
            connection.execute(statement)
        if "tenant" not in {row[1] for row in connection.execute("PRAGMA table_info(claims)")}:
            connection.execute("ALTER TABLE claims ADD COLUMN tenant TEXT NOT NULL DEFAULT 'blue'")
        connection.execute(f"PRAGMA user_version = {FORMAT[0] * 1000 + FORMAT[1]}")
        connection.execute("COMMIT")
        connection.close()

    def newer_upgrade(path) -> None:
        upgrade(path)
        add(path)

    def newer_create(path, release) -> None:
        create(path, release)
        add(path)

    journal_file._upgrade, journal_file._create = newer_upgrade, newer_create
    from dra_gpu.claims import journal

    journal.encode_payload = encode_payload


if __name__ == "__main__":
    _with_a_newer_journal()
    sys.exit(main())
