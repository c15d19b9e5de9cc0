"""Peers as subjects of the contract suite; see `contract_peers.py`."""

from __future__ import annotations

import warnings

from contract.adapters import LangChainLoader, LlamaIndexReader, Subject

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is being ended, and says so
    from langchain_community.document_loaders import PyMuPDFLoader
    from llama_index.readers.file import PDFReader

PEERS: list[Subject] = [
    LangChainLoader("PyMuPDFLoader", PyMuPDFLoader, "pymupdf:Page.get_text"),
    LlamaIndexReader("PDFReader", PDFReader, "pypdf._page:PageObject.extract_text"),
]
