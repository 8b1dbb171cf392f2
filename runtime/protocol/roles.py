"""Names of roles. A chat template writes them beside its control tokens, so they are short and cannot spell one."""

from __future__ import annotations

import re
from functools import lru_cache

from banyan.runtime.errors import BadProgram

_ROLE = re.compile(r"[A-Za-z0-9_ .-]{1,64}")


def check_role(name: object) -> None:
    """BadProgram: it is no name of a role."""
    if not isinstance(name, str) or len(name) > 64 or not _is_role(name):
        raise BadProgram(
            f"a role is a name of 1 to 64 letters, digits, spaces and `_.-`, such as 'tool', not {str(name)[:80]!r}"
        )


@lru_cache(maxsize=1024)
def _is_role(name: str) -> bool:
    return _ROLE.fullmatch(name) is not None
