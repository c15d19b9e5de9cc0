"""Every test of this folder runs once for each subject; see `adapters.py`."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

import pytest
from contract.stage import Stage
from support.fault_server import FaultServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from contract.adapters import Subject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        module, _, name = os.environ.get("CONTRACT_SUBJECTS", "contract.adapters:OURS").partition(
            ":"
        )
        subjects = getattr(importlib.import_module(module), name)
        metafunc.parametrize("subject", subjects, ids=lambda subject: subject.name)


@pytest.fixture
def stage(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with FaultServer() as server:
        yield Stage(subject, tmp_path, server, monkeypatch)
