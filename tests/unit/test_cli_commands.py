"""`serve`, `stop`, `status`, `doctor` and `cache`: what they pass on, say, and end with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from deepseek_ocr_loaders.cache import PageCache
from deepseek_ocr_loaders.cli import ExitCode, app
from deepseek_ocr_loaders.errors import NoEngineError, ServerStartError
from deepseek_ocr_loaders.server import control

if TYPE_CHECKING:
    from pathlib import Path

    from deepseek_ocr_loaders.engines.base import ServerOptions

SERVER = control.ServerStatus(
    id="abc",
    engine="vllm",
    model="deepseek-ai/DeepSeek-OCR",
    phase="ready",
    stage="",
    base_url="http://127.0.0.1:4321/v1",
    pid=17,
    supervisor=16,
    users=(15,),
    kept=True,
    generation=0,
    restarts=0,
    started=0.0,
    version="0.26.0",
    log_file="/state/server.log",
    message="",
)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


class Served:
    """Stands in for `control.serve`, and remembers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options: list[ServerOptions] = []
        self.rest: dict[str, Any] = {}
        self.error: BaseException | None = None
        monkeypatch.setattr(control, "serve", self.serve)

    def serve(self, options: ServerOptions, *, on_ready: Any, **rest: Any) -> control.ServerStatus:
        self.options.append(options)
        self.rest = rest
        if self.error is not None:
            raise self.error
        on_ready([SERVER])
        return SERVER


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    for name in ("DEEPSEEK_OCR_ENGINE", "DEEPSEEK_OCR_MODEL", "DEEPSEEK_OCR_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return Served(monkeypatch)


def test_serve_says_where_it_is(served: Served) -> None:
    result = _run("serve", "--engine", "vllm", "--detach", "--start-timeout", "5")
    assert result.exit_code == ExitCode.OK, result.output
    assert result.stdout == "http://127.0.0.1:4321/v1\n"
    assert "/state/server.log" in result.stderr
    assert served.rest == {"detach": True, "start_timeout": 5.0}


def test_serve_passes_everything_on(served: Served, tmp_path: Path) -> None:
    arguments = (
        f"serve --engine docker --model some/model --port 4321 --gpu-memory-utilization 0.5 "
        f"--data-parallel-size 2 --tensor-parallel-size 3 --env A=1 --env B=x=y --image tag:1 "
        f"--image-tar {tmp_path}/image.tar --offline -- --max-num-seqs 64"
    )
    result = _run(*arguments.split())
    assert result.exit_code == ExitCode.OK, result.output
    (options,) = served.options
    assert options.engine == "docker"
    assert options.model == "some/model"
    assert (options.port, options.gpu_memory_utilization) == (4321, 0.5)
    assert (options.data_parallel_size, options.tensor_parallel_size) == (2, 3)
    assert options.env == (("A", "1"), ("B", "x=y"))
    assert (options.image, options.image_tar) == ("tag:1", tmp_path / "image.tar")
    assert options.offline
    assert options.extra_args == ("--max-num-seqs", "64")


def test_serve_and_a_loader_mean_the_same_server(served: Served) -> None:
    # Otherwise two of them would fight for the GPU.
    _run("serve", "--engine", "vllm")
    assert served.options == [control.options_of("vllm", None)]


@pytest.mark.parametrize(
    "arguments",
    [
        "serve --port 0",
        "serve --gpu-memory-utilization 2",
        "serve --engine other",
        "serve --env NAME",
        "serve --engine vllm -- --api-key sk-very-secret",
        "serve --env =sk-very-secret",
    ],
)
def test_serve_refuses_what_cannot_be_used(served: Served, arguments: str) -> None:
    result = _run(*arguments.split())
    assert result.exit_code == ExitCode.USAGE, result.output
    assert served.options == []
    assert "very-secret" not in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoEngineError("nothing here can read"), ExitCode.SERVER),
        (ServerStartError("it did not start", log_tail="CUDA out of memory"), ExitCode.SERVER),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_serve_ends_with_a_line_and_a_code(
    served: Served, error: BaseException, code: ExitCode
) -> None:
    served.error = error
    result = _run("serve", "--engine", "vllm")
    assert result.exit_code == code
    assert "Traceback" not in result.output
    assert str(error) in result.stderr
    assert getattr(error, "log_tail", "") in result.stderr


def test_status_lists_and_tells_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "status", lambda: [SERVER])
    line = _run("status").stdout
    for word in ("vllm", "deepseek-ai/DeepSeek-OCR", "ready", SERVER.base_url, "17", "1 users"):
        assert word in line
    assert json.loads(_run("status", "--json").stdout)[0]["base_url"] == SERVER.base_url
    monkeypatch.setattr(control, "status", list)
    assert _run("status").stdout == "no managed server is running\n"
    assert json.loads(_run("status", "--json").stdout) == []


def test_stop_says_what_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "stop_all", lambda: [SERVER])
    assert "stopped vllm" in _run("stop").stdout
    monkeypatch.setattr(control, "stop_all", list)
    assert _run("stop").stdout == "no managed server is running\n"


@pytest.mark.parametrize(
    ("verdict", "code"), [("ok", ExitCode.OK), ("warning", ExitCode.OK), ("error", ExitCode.SERVER)]
)
def test_doctor_ends_with_the_worst(
    monkeypatch: pytest.MonkeyPatch, verdict: Any, code: ExitCode
) -> None:
    asked: list[str | None] = []

    def doctor(*, model: str | None) -> list[control.Check]:
        asked.append(model)
        return [
            control.Check("versions", "ok", "Python"),
            control.Check("gpu", verdict, "none is seen", "buy one"),
        ]

    monkeypatch.setattr(control, "doctor", doctor)
    result = _run("doctor", "--model", "m")
    assert result.exit_code == code
    assert asked == ["m"]
    assert "gpu: none is seen" in result.stdout
    assert "-> buy one" in result.stdout
    assert [check["status"] for check in json.loads(_run("doctor", "--json").stdout)] == [
        "ok",
        verdict,
    ]


def test_cache_is_counted_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PageCache(tmp_path)
    for number in range(3):
        kept.put(PageCache.key(page=number), {"text": "x"})
    assert "3 pages" in _run("cache", "info", "--folder", str(tmp_path)).stdout
    monkeypatch.setenv("DEEPSEEK_OCR_CACHE", str(tmp_path))
    assert "3 pages thrown away" in _run("cache", "clear").stdout
    assert "0 pages" in _run("cache", "info").stdout


def test_cache_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = _run("cache", "info", "--folder", str(tmp_path / "file" / "pages"))
    assert result.exit_code == ExitCode.USAGE
    assert "cannot be made" in result.stderr
