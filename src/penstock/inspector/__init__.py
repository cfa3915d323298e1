"""Views across the engines, composed from their admin APIs; doctor, key contract and repairs.

Behind the CLI, and later HTTP, console and metrics. The working path never goes through here. Each
call states its cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.inspector.doctor import Diagnosis, Finding
    from penstock.inspector.repairs import OddEntry, Repairs
    from penstock.inspector.rights import AclUser, acl_user
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "doctor": "Diagnosis Finding",
            "repairs": "OddEntry Repairs",
            "rights": "AclUser acl_user",
        },
    )

__all__ = [
    # doctor
    "Diagnosis",
    "Finding",
    # repairs
    "Repairs",
    "OddEntry",
    # rights
    "AclUser",
    "acl_user",
]
