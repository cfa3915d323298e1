"""The command line for documents as tests use it, with a data directory and quick timings."""

import os
import subprocess
import uuid
from contextlib import contextmanager
from pathlib import Path

from tests.kit.shell import Shell

from penstock.testing.servers import wait_until

HURRIED = {
    "PENSTOCK_VECTORS_LINGER_S": "0.2",
    "PENSTOCK_DOCUMENTS_SETTLE_MS": "50",
    "PENSTOCK_DOCUMENTS_RESCAN_S": "1",
    "PENSTOCK_DOCUMENTS_PARSERS": "1",
    "PENSTOCK_WORKER_HEARTBEAT_S": "0.2",
}


class Office(Shell):
    """A shell with a data directory of its own."""

    def __init__(self, nursery, folder, server):
        self.home = folder / "home"
        name = f"test-{uuid.uuid4().hex[:12]}"
        place = {"PENSTOCK_URL": server.url, "PENSTOCK_HOME": str(self.home)}
        super().__init__(nursery, folder, name, **place, **HURRIED)

    def file(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def rag(self, *options):
        """A new RAG; its id."""
        rag_id = f"r{uuid.uuid4().hex[:8]}"
        self.ok("rag", "create", rag_id, *options)
        return rag_id

    def sources(self, rag_id, name):
        return self.home / "documents" / "sources" / rag_id / name

    @contextmanager
    def worker(self, *options, **more):
        with self.begin(
            "ingest", "work", "--stop-on-eof", *options, stdin=subprocess.PIPE, **more
        ) as process:
            wait_until(
                lambda: self("ingest", "health").returncode == 0, what="a worker", timeout_s=60
            )
            yield process
            process.stdin.close()
            assert process.wait(20) == 0, process.stderr.read()


def processes_of(home):
    """Processes that have a file of this data directory open, or name it on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            opened = [str(file.readlink()) for file in (entry / "fd").iterdir()]
            told = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended
        if str(home) in told or any(name.startswith(str(home)) for name in opened):
            found.append((int(entry.name), told))
    return found
