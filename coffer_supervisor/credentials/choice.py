"""Where it is recorded that secrets are kept in Coffer's own file: that the file, or its key, is there.

Owns the two paths. Costs nothing to import; never opens either file.
"""

from pathlib import Path


def key_path(folder: Path) -> Path:
    """The key."""
    return folder / "key"


def secrets_path(folder: Path) -> Path:
    """The encrypted entries."""
    return folder / "secrets"


def is_chosen(folder: Path) -> bool:
    """Whether secrets are kept in ``folder``. One of the two is enough: losing the other must not go unnoticed."""
    return key_path(folder).exists() or secrets_path(folder).exists()
