"""The error of this package. It stands alone: `robopolicy` imports torch in most of its modules, this must not."""

from __future__ import annotations

from robopolicy.core.errors import RobopolicyError


class SafetyError(RobopolicyError):
    """A limit, profile or state under which the arm must not be moved."""
