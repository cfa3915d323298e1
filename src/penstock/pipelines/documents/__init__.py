"""Documents for retrieval: read, split, embedded, indexed, with a status to rely on.

Names are loaded on first use: the processes that read files need next to nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.pipelines.documents.admin.health import DocumentsHealth, Explanation
    from penstock.pipelines.documents.admin.views import DocumentBatchView, FileView, RagView
    from penstock.pipelines.documents.embedding.embedder import Embedder
    from penstock.pipelines.documents.ingest.rebuilding import RebuildStatus
    from penstock.pipelines.documents.search import SearchHit
    from penstock.pipelines.documents.service import Documents
    from penstock.pipelines.documents.submit.folder_sync import SyncReport
    from penstock.pipelines.documents.submit.submitter import SubmitResult
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "admin.health": "DocumentsHealth Explanation",
            "admin.views": "DocumentBatchView FileView RagView",
            "embedding.embedder": "Embedder",
            "ingest.rebuilding": "RebuildStatus",
            "search": "SearchHit",
            "service": "Documents",
            "submit.folder_sync": "SyncReport",
            "submit.submitter": "SubmitResult",
        },
    )

__all__ = [
    # the pipeline
    "Documents",
    "Embedder",
    # what its methods return
    "SubmitResult",
    "SyncReport",
    "DocumentBatchView",
    "FileView",
    "Explanation",
    "SearchHit",
    "RagView",
    "RebuildStatus",
    "DocumentsHealth",
]
