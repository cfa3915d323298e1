"""LlamaIndex: its IngestionPipeline.

python llama_peer.py <memory | disk> <tokens | characters> <sleep ms> <size> <count>

Its texts are given to it in memory; it neither reads files nor moves them. It has a docstore, so
that it can tell what has not changed, and no cache of what its steps have made.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

from llama_index.core import Document
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient
from texts import Stub, edited, text

# So that it makes as many chunks as we do with 1,024 characters. Its splitter counts tokens, unless
# told to count characters.
SPLITTERS = {
    "tokens": {"chunk_size": 190, "chunk_overlap": 28},
    "characters": {"chunk_size": 910, "chunk_overlap": 128, "tokenizer": list},
}
MOST = 256
"""Texts of one call of the model, as ours."""


class Model(BaseEmbedding):
    """The stub as one of its own."""

    stub: Any

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.stub([text])[0].tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.stub(texts).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def main(place: str, counting: str, sleep_ms: float, size: int, count: int) -> None:
    stub = Stub(sleep_ms / 1000)
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        client = QdrantClient(":memory:") if place == "memory" else QdrantClient(path=folder)
        pipeline = _pipeline(stub, counting, client, SimpleDocumentStore())
        pipeline.run(
            documents=_documents(size, range(count, count + 5))
        )  # imports, and a collection
        stub.texts = 0
        documents = _documents(size, range(count))
        began, spent = time.perf_counter(), time.process_time()
        chunks = len(pipeline.run(documents=documents))
        first_s, cpu_s = time.perf_counter() - began, time.process_time() - spent
        told = {"rate": count / first_s, "cpu": cpu_s, "chunks": chunks, "embedded": stub.texts}

        stub.texts, documents = 0, _documents(size, range(count))
        began = time.perf_counter()
        pipeline.run(documents=documents)
        told |= {"again": count / (time.perf_counter() - began), "again_embedded": stub.texts}

        stub.texts = 0
        pipeline.run(documents=_documents(size, range(count), edit=count // 2))
        told["edit_embedded"] = stub.texts

        stub.texts = 0
        without = _pipeline(stub, counting, client, None)
        without.run(documents=_documents(size, range(count), edit=count // 2))
        told["edit_embedded_without_docstore"] = stub.texts
        client.close()
    print(json.dumps(told), flush=True)


def _pipeline(stub: Stub, counting: str, client: Any, docstore: Any) -> IngestionPipeline:
    store = QdrantVectorStore(client=client, collection_name="bench")
    splitter = SentenceSplitter(**SPLITTERS[counting])
    return IngestionPipeline(
        transformations=[splitter, Model(stub=stub, embed_batch_size=MOST)],
        docstore=docstore,
        vector_store=store,
        disable_cache=True,
    )


def _documents(size: int, numbers: range, edit: int | None = None) -> list[Document]:
    made = [text(number, size) for number in numbers]
    if edit is not None:
        made[edit] = edited(made[edit])
    return [
        Document(text=one, id_=f"{number}.txt") for number, one in zip(numbers, made, strict=True)
    ]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
