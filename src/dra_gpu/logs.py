"""Logs of a process: one JSON object a line, or plain text at a terminal. Nothing secret is ever put into one."""

import logging
import sys

import structlog

LEVELS = ("debug", "info", "warning", "error")


def configure(level: str, *, instance: str, text: bool | None = None) -> None:
    """Set up logging for the process.

    Args:
        level: one of `LEVELS`; messages below it are dropped.
        instance: names this instance in every line, so that two of them can be told apart during an upgrade.
        text: plain text instead of JSON; by default when stderr is a terminal.
    """
    plain = sys.stderr.isatty() if text is None else text
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if plain:
        renderer = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda _logger, _method, event: {**event, "instance": instance},
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
