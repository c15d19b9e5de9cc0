"""vLLM in a container, against a recording `docker` that keeps containers as processes."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from support import fake_docker
from support.servers import Launch, launch, marked_processes, state_dir, state_of, wait_for

from deepseek_ocr_loaders import DeepSeekOCRServer
from deepseek_ocr_loaders.engines.docker import DEFAULT_IMAGE
from deepseek_ocr_loaders.errors import ServerStartError
from deepseek_ocr_loaders.server.processes import end_container

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["launch", "state_dir"]


@pytest.fixture
def docker(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / "docker-home"
    executable = fake_docker.install(tmp_path / "bin", home)
    monkeypatch.setenv("PATH", f"{executable.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(home))
    monkeypatch.delenv("FAKE_VLLM", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield home
    left = []
    for record in home.glob("*.json"):
        pid = json.loads(record.read_text())["pid"]
        if fake_docker._alive(pid):
            left.append(pid)
            os.kill(pid, signal.SIGKILL)
    assert not left, "containers were left behind"


def server(**options: object) -> DeepSeekOCRServer:
    return DeepSeekOCRServer(engine="docker", **options)  # type: ignore[arg-type]


def the_run(home: Path) -> dict[str, object]:
    (found,) = [call for call in fake_docker.calls(home) if call["argv"][0] == "run"]
    return found


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_container_is_run_and_stopped_by_its_own_name(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hub")
    with server() as running:
        assert running.engine == "vllm"
        assert running.model == "deepseek-ai/DeepSeek-OCR"
        assert running.api_key is not None
        key = running.api_key.get_secret_value()
        port = running.base_url.split(":")[2].split("/")[0]
    argv = the_run(docker)["argv"]
    assert isinstance(argv, list)
    name = value(argv, "--name")
    assert value(argv, "--label") == f"deepseek-ocr-loaders.server={name}"
    assert value(argv, "--gpus") == "all"
    assert "--ipc=host" in argv
    assert "--rm" in argv
    assert value(argv, "--publish") == f"127.0.0.1:{port}:8000"
    assert value(argv, "--volume") == "/data/hub:/root/.cache/huggingface"
    assert DEFAULT_IMAGE in argv
    assert argv[argv.index(DEFAULT_IMAGE) + 1 :][:2] == ["serve", "deepseek-ai/DeepSeek-OCR"]
    assert value(argv, "--logits-processors").endswith(":NGramPerReqLogitsProcessor")
    # The key travels by environment: the name alone is on the command line.
    assert "VLLM_API_KEY" in argv
    assert key not in json.dumps([call["argv"] for call in fake_docker.calls(docker)])
    stops = [c["argv"] for c in fake_docker.calls(docker) if c["argv"][0] in {"stop", "rm"}]
    assert all(argv[-1] == name for argv in stops)
    assert list(docker.glob("*.json")) == []


def test_chosen_gpus_and_folder_of_the_model(
    docker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    model = tmp_path / "my-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with server(model=str(model), tensor_parallel_size=2, image="vllm/vllm-openai:v0.19.1") as one:
        assert one.model == "my-model"
    argv = the_run(docker)["argv"]
    assert isinstance(argv, list)
    assert value(argv, "--gpus") == '"device=1,3"'
    assert value(argv, "--volume") == f"{model}:/model:ro"
    assert argv[argv.index("serve") + 1] == "/model"
    assert value(argv, "--tensor-parallel-size") == "2"
    # 0.19 has no such flag, and needs no second-runner variable.
    assert "--renderer-num-workers" not in argv
    assert "VLLM_USE_V2_MODEL_RUNNER" not in argv


def test_image_from_a_file_without_network(docker: Path, tmp_path: Path) -> None:
    tar = tmp_path / "image.tar"
    tar.write_text("local/vllm:v0.32.0")
    for _ in range(2):
        with server(image="local/vllm:v0.32.0", image_tar=tar, offline=True):
            pass
    commands = [call["argv"][0] for call in fake_docker.calls(docker)]
    assert commands.count("load") == 1
    assert commands.count("run") == 2
    run = next(call for call in fake_docker.calls(docker) if call["argv"][0] == "run")
    assert value(run["argv"], "--pull") == "never"
    assert run["env"]["HF_HUB_OFFLINE"] == "1"
    assert run["env"]["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_offline_without_the_image(docker: Path, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="docker save"):
        server(offline=True).start()
    with pytest.raises(ServerStartError, match="does not exist"):
        server(offline=True, image_tar=tmp_path / "gone.tar").start()


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Cannot connect to the Docker daemon. Is the docker daemon running?", "Start its daemon"),
        (
            'docker: Error: could not select device driver "" with capabilities: [[gpu]].',
            "Container Toolkit",
        ),
        ("docker: Error response from daemon: manifest for x not found", "image="),
    ],
)
def test_failures_of_docker_are_told(docker: Path, message: str, cause: str) -> None:
    (docker / "fail").write_text(json.dumps({"run": [125, message]}))
    with pytest.raises(ServerStartError) as caught:
        server().start()
    assert caught.value.exit_code == 125
    assert cause in caught.value.hint
    assert message in caught.value.log_tail


def test_engine_that_fails_inside_shows_its_log(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "FAKE_VLLM",
        json.dumps({"lines": ["torch.OutOfMemoryError: CUDA out of memory"], "exit": 1}),
    )
    with pytest.raises(ServerStartError, match="CUDA out of memory") as caught:
        server().start()
    assert "memory ran out" in caught.value.hint


def test_container_is_stopped_when_the_user_is_killed(
    docker: Path, launch: Launch, state_dir: Path
) -> None:
    user = launch(
        "import time\nfrom deepseek_ocr_loaders import DeepSeekOCRServer\n"
        "print(DeepSeekOCRServer(engine='docker').start().base_url, flush=True)\ntime.sleep(600)"
    )
    assert user.stdout is not None
    user.stdout.readline()
    (record,) = docker.glob("*.json")
    pid = json.loads(record.read_text())["pid"]
    user.kill()
    wait_for(lambda: not fake_docker._alive(pid))
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_container_is_stopped_when_the_supervisor_is_killed(docker: Path, state_dir: Path) -> None:
    with server():
        (record,) = docker.glob("*.json")
        pid = json.loads(record.read_text())["pid"]
        os.kill(state_of(state_dir).supervisor.pid, signal.SIGKILL)
        wait_for(lambda: not fake_docker._alive(pid))


@pytest.mark.parametrize("labels", [{}, {"deepseek-ocr-loaders.server": "another"}])
def test_container_of_someone_else_is_never_stopped(docker: Path, labels: dict[str, str]) -> None:
    record = {"labels": labels, "pid": os.getpid(), "remove": True}
    (docker / "theirs.json").write_text(json.dumps(record))
    end_container("docker", "theirs", grace=1)
    end_container("docker", "gone", grace=1)
    assert {call["argv"][0] for call in fake_docker.calls(docker)} == {"inspect"}
    (docker / "theirs.json").unlink()
