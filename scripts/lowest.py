#!/usr/bin/env python3
"""Print the oldest version of each dependency that `pyproject.toml` allows, as constraints.

`make test-lowest` installs exactly these, so that every lower bound there was tried.
"""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
NOT_TRIED = {"vllm", "all"}
"""Extras that are left out: vLLM runs in an environment of its own."""


def main() -> None:
    """Print one constraint a line."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    chosen = [requirements for extra, requirements in extras.items() if extra not in NOT_TRIED]
    for requirement in sorted(chain(project["dependencies"], *chosen)):
        found = re.match(r"([\w.-]+)[^;]*?>=\s*([\w.]+)", requirement)
        if found is None:
            msg = f"no lower bound: {requirement}"
            raise SystemExit(msg)
        print(f"{found[1]}=={found[2]}")


if __name__ == "__main__":
    main()
