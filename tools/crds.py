"""Writes deploy/crds.yaml: the kinds that a cluster has to know, from the types that read them (`make crds`)."""  # noqa: INP001 - a script

from pathlib import Path

import yaml

from dra_gpu.validation import crds

PATH = Path(__file__).parents[1] / "deploy" / "crds.yaml"
_NOTE = "# Made from src/dra_gpu/api/claim_resize.py by `make crds`: change that one.\n"


def render() -> str:
    """Return the text of the file."""
    documents = (
        yaml.safe_dump(one, sort_keys=False, width=120, allow_unicode=True) for one in crds.definitions().values()
    )
    return _NOTE + "---\n".join(documents)


def main() -> None:
    """Write the file."""
    PATH.write_text(render())


if __name__ == "__main__":
    main()
