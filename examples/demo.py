"""Read the sample PDFs with the embedded engine, and print the Documents with their metadata.

`make demo` runs it; it needs neither a GPU nor the network, and takes about a minute.
"""

from __future__ import annotations

import logging
from pathlib import Path
from textwrap import indent, shorten

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader, DeepSeekOCRServer

SAMPLES = Path(__file__).parent / "samples"


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Without `engine`, a GPU with vLLM is used where there is one.
    with DeepSeekOCRServer(engine="rapidocr") as server:
        print(f"The server: {server.engine} at {server.base_url}, {server.model}\n")

        loader = DeepSeekOCRLoader(sorted(SAMPLES.glob("*.pdf")), server=server)
        for document in loader.lazy_load():
            print(f"LangChain Document {document.id}")
            for key, value in document.metadata.items():
                print(f"  {key}: {value}")
            print(indent(shorten(document.page_content, 300, placeholder=" …"), "  | "), "\n")
        print(loader.report)

        (document, *others) = DeepSeekOCRReader(server=server).load_data(SAMPLES / "labels.pdf")
        print(f"\nLlamaIndex Document {document.doc_id}, and {len(others)} others")
        print(indent(document.get_content(metadata_mode="llm"), "  | "))


if __name__ == "__main__":
    main()
