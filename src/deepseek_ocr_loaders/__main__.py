"""`python -m deepseek_ocr_loaders`: the command line where its script is not on the path."""

from deepseek_ocr_loaders.cli import main

main()
