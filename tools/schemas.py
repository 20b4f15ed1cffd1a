"""Writes docs/schemas: the JSON schemas of what users write (`make schemas`)."""  # noqa: INP001 - a script

from pathlib import Path

from dra_gpu.validation import schemas

DIRECTORY = Path(__file__).parents[1] / "docs" / "schemas"


def main() -> None:
    """Write every schema and remove what is none any more."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    wanted = {f"{name}.json": schemas.render(schema) for name, schema in schemas.schemas().items()}
    for path in DIRECTORY.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (DIRECTORY / name).write_text(text)


if __name__ == "__main__":
    main()
