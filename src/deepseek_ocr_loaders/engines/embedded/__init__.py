"""A server with vLLM's routes and DeepSeek-OCR's answer grammar that reads with RapidOCR.

It runs as a process of its own, `python -m deepseek_ocr_loaders.engines.embedded`, so that the
whole path of a page is the same on a laptop as on a GPU. A page goes through these modules:

    request    the body of a request → what is asked, or why it is refused
    recognise  picture → lines with their places
    layout     lines → blocks in reading order
    grammar    blocks → the text that DeepSeek-OCR would write
    tokens     how long that text counts, and where it is cut
    app        the HTTP routes around all of it
"""
