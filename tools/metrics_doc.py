"""Writes docs/metrics.md: every metric of every process (`make metrics-doc`)."""  # noqa: INP001 - a script

from pathlib import Path

from dra_gpu.metrics import reference

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

if __name__ == "__main__":
    PAGE.write_text(reference.render())
