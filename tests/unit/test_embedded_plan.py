from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from deepseek_ocr_loaders.engines import rapidocr as module
from deepseek_ocr_loaders.engines.base import ServerOptions
from deepseek_ocr_loaders.engines.rapidocr import RapidOCREngine
from deepseek_ocr_loaders.errors import ServerStartError


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: name)


def plan(**options: Any) -> Any:
    chosen = ServerOptions(**{"engine": "rapidocr", "model": "rapidocr", **options})
    return RapidOCREngine().plan(chosen, port=18123, api_key="the-secret-key")


@pytest.mark.usefixtures("present")
def test_the_key_is_in_the_environment_and_nowhere_else() -> None:
    launch = plan()
    assert launch.env["VLLM_API_KEY"] == "the-secret-key"
    assert "the-secret-key" not in " ".join(launch.argv)
    assert "the-secret-key" not in repr(launch)


@pytest.mark.usefixtures("present")
def test_it_starts_this_python_on_the_loopback_address() -> None:
    launch = plan()
    assert launch.argv[0] == sys.executable
    assert "deepseek_ocr_loaders.engines.embedded" in launch.argv
    arguments = " ".join(launch.argv)
    assert "--host 127.0.0.1 --port 18123 --model rapidocr" in arguments
    assert launch.served_model == "rapidocr"
    assert launch.container is None


@pytest.mark.usefixtures("present")
def test_arguments_and_environment_of_the_user_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_OCR_API_KEY", "for-another-server")
    monkeypatch.setenv("VLLM_API_KEY", "for-another-server")
    monkeypatch.setenv("SOME_VARIABLE", "kept")
    launch = plan(model="org/name", extra_args=("--threads", "1"), env=(("OMP_NUM_THREADS", "1"),))
    assert list(launch.argv[-2:]) == ["--threads", "1"]
    assert launch.env["OMP_NUM_THREADS"] == "1"
    assert launch.env["SOME_VARIABLE"] == "kept"
    assert "for-another-server" not in launch.env.values()
    assert launch.served_model == "org/name"


@pytest.mark.parametrize("missing", ["rapidocr", "onnxruntime", "starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == missing else name)
    reason = RapidOCREngine().unavailable()
    assert reason is not None
    assert missing in reason
    assert 'pip install "deepseek-ocr-loaders[cpu]"' in reason
    with pytest.raises(ServerStartError, match=missing):
        plan()


@pytest.mark.usefixtures("present")
def test_it_is_available_where_everything_is_found() -> None:
    assert RapidOCREngine().unavailable() is None


def test_asking_imports_nothing() -> None:
    code = (
        "import sys; from deepseek_ocr_loaders.engines.rapidocr import RapidOCREngine; "
        "RapidOCREngine().unavailable(); "
        "print({'rapidocr', 'onnxruntime', 'starlette', 'uvicorn', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert importlib.util.find_spec("deepseek_ocr_loaders.engines.embedded") is not None
