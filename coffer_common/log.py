"""Log set-up of Coffer's processes: structlog JSON lines in a rotated file, the standard library's logging routed in.

Owns handlers, format and the masking of tokens. Never decides what is worth a line.
"""

import contextlib
import logging
import logging.handlers
import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

MAX_BYTES: Final = 10 * 1024 * 1024
FILES_KEPT: Final = 5

_MASKED: Final = (
    (re.compile(r"(/key/)[^/\s?#\"']+"), r"\1***"),
    (re.compile(r"(?i)\b(bearer\s+|x-coffer-token[\"']?\s*[:=]\s*[\"']?)[A-Za-z0-9._~+/=-]+"), r"\1***"),
)


def set_up(file: Path, *, foreground: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Sends every log line of this process to ``file`` (0600, 10 MB, 5 kept), and with ``foreground`` a readable
    form to ``stream`` (stderr) as well. Times are RFC 3339 UTC."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.StackInfoRenderer(),
    ]
    handlers: list[logging.Handler] = [_file_handler(file, shared)]
    if foreground:
        handlers.append(_console_handler(stream or sys.stderr, shared))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a full disk must not fill stderr with tracebacks
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger; ``name`` is the module's."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def mask(text: str) -> str:
    """``text`` without bearer tokens and tokens in ``/key/TOKEN/`` paths."""
    for pattern, replacement in _MASKED:
        text = pattern.sub(replacement, text)
    return text


def mask_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: masks every string of one line."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = mask(value)
    return event


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A rotating file that is 0600 from its first byte, and begun anew where somebody removed it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        if self.stream is not None and not os.path.exists(self.baseFilename):
            with contextlib.suppress(OSError):
                self.stream.close()
            self.stream = None
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(self.baseFilename), 0o700, exist_ok=True)
        super().emit(record)

    def _open(self) -> Any:
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace")


def _file_handler(file: Path, shared: list[Any]) -> logging.Handler:
    handler = _PrivateFile(file, maxBytes=MAX_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                mask_event,
                structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
            ],
        )
    )
    return handler


def _console_handler(stream: TextIO, shared: list[Any]) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    colours = stream.isatty() and "NO_COLOR" not in os.environ
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                mask_event,
                structlog.dev.ConsoleRenderer(
                    colors=colours,
                    timestamp_key="at",
                    # The default prints each frame's locals where rich is installed: tokens and configurations.
                    exception_formatter=structlog.dev.plain_traceback,
                ),
            ],
        )
    )
    return handler
