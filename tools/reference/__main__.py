"""Writes docs/reference (`python -m tools.reference`)."""

from tools.reference import pages

if __name__ == "__main__":
    pages.write()
