"""`deepseek-ocr-loaders load`: what it takes, what it writes, and how it ends."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from contract.stage import written_pdf
from langchain_core.documents import Document
from support.fault_server import FaultServer, answer, marked_image, markers_in, silence, status
from typer.testing import CliRunner, Result

from deepseek_ocr_loaders import DeepSeekOCRLoader
from deepseek_ocr_loaders.cli import ExitCode, app
from deepseek_ocr_loaders.export import read_jsonl
from deepseek_ocr_loaders.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = [sys.executable, "-m", "deepseek_ocr_loaders"]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "in"
    for name, numbers in {"a": [1, 2, 3], "b": [4], "sub/a": [5, 6]}.items():
        path = root / f"{name}.pdf"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(written_pdf(numbers))
    monkeypatch.chdir(root)
    return root


def _load(server: FaultServer, *arguments: object) -> Result:
    given = ["load", *map(str, arguments), "--base-url", server.base_url]
    # A narrow terminal must not break the lines that are read here.
    return CliRunner(env={"COLUMNS": "60", "TERM": "dumb"}).invoke(app, given)


def _process(server: FaultServer, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "DEEPSEEK_OCR_BASE_URL": server.base_url}
    return subprocess.Popen(
        [*PROGRAM, "load", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**environment, **options.pop("env", {})},
        **options,
    )


# --- what it takes ---------------------------------------------------------------------------


def test_a_file_goes_to_stdout(folder: Path, server: FaultServer) -> None:
    result = _load(server, "a.pdf")
    assert result.exit_code == ExitCode.OK, result.output
    assert markers_in(result.stdout) == [1, 2, 3]
    assert "3 pages in" in result.stderr
    assert "pages in" not in result.stdout


def test_as_a_real_program(folder: Path, server: FaultServer) -> None:
    process = _process(server, "a.pdf", "b.pdf")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert markers_in(out) == [1, 2, 3, 4]
    assert "Traceback" not in err


def test_files_come_in_the_order_given_and_once(folder: Path, server: FaultServer) -> None:
    result = _load(server, "b.pdf", "a.pdf", "./b.pdf")
    assert markers_in(result.stdout) == [4, 1, 2, 3]


def test_a_folder(folder: Path, server: FaultServer) -> None:
    (folder / "notes.txt").write_text("not a document")
    marked_image(7).save(folder / "scan.png")
    result = _load(server, ".")
    assert result.exit_code == ExitCode.OK, result.output
    assert sorted(markers_in(result.stdout)) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("glob", "numbers"),
    [
        ("*.pdf", [1, 2, 3, 4]),
        ("**/*.pdf", [1, 2, 3, 4, 5, 6]),
        ("[b]*.pdf", [4]),
        ("sub/?.pdf", [5, 6]),
    ],
)
def test_a_glob_that_the_shell_left_alone(
    folder: Path, server: FaultServer, glob: str, numbers: list[int]
) -> None:
    for given in (glob, folder / glob):
        assert sorted(markers_in(_load(server, given).stdout)) == numbers


def test_a_file_whose_name_looks_like_a_glob(folder: Path, server: FaultServer) -> None:
    (folder / "paper [1].pdf").write_bytes(written_pdf([8]))
    assert markers_in(_load(server, "paper [1].pdf").stdout) == [8]


def test_a_glob_that_matches_nothing_is_told(folder: Path, server: FaultServer) -> None:
    result = _load(server, "*.tiff")
    assert result.exit_code == ExitCode.USAGE
    assert "no file matches '*.tiff'" in result.stderr


def test_a_missing_file_is_told(folder: Path, server: FaultServer) -> None:
    result = _load(server, "gone.pdf")
    assert result.exit_code == ExitCode.NOTHING_READ
    assert "gone.pdf" in result.stderr
    assert result.stdout == ""


@pytest.fixture
def web(folder: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_an_address_in_a_private_network_is_refused(web: str, server: FaultServer) -> None:
    result = _load(server, f"{web}/a.pdf?token=se-cret")
    assert result.exit_code == ExitCode.NOTHING_READ
    assert "allow" in result.stderr
    assert "se-cret" not in result.output
    assert server.requests == []


def test_an_address_is_read(web: str, server: FaultServer, tmp_path: Path) -> None:
    result = _load(server, f"{web}/a.pdf?token=se-cret", "--allow-private-addresses")
    assert markers_in(result.stdout) == [1, 2, 3]
    out = tmp_path / "out"
    again = _load(
        server,
        f"{web}/a.pdf?token=se-cret",
        f"{web}/sub/a.pdf?token=se-cret",
        "--allow-private-addresses",
        "--out",
        out,
    )
    assert again.exit_code == ExitCode.OK, again.output
    assert len(list(out.iterdir())) == 2
    assert "se-cret" not in result.output + again.output
    assert not any("se-cret" in path.name for path in out.iterdir())


# --- what it writes --------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["markdown", "text"])
def test_texts_have_a_blank_line_between_them(folder: Path, server: FaultServer, form: str) -> None:
    lines = _load(server, "a.pdf", "--format", form).stdout.split("\n")
    texts = [line for line in lines if line]
    assert [markers_in(text) for text in texts] == [[1], [2], [3]]
    assert lines.count("") == 3  # two between, and the end of the last line


def test_json_is_one_array(folder: Path, server: FaultServer) -> None:
    values = json.loads(_load(server, "a.pdf", "-f", "json").stdout)
    assert [markers_in(value["page_content"]) for value in values] == [[1], [2], [3]]
    assert [value["metadata"]["page"] for value in values] == [0, 1, 2]


def test_json_of_nothing_is_an_empty_array(tmp_path: Path, server: FaultServer) -> None:
    (tmp_path / "empty").mkdir()
    result = _load(server, tmp_path / "empty", "-f", "json")
    if result.exit_code == ExitCode.OK:
        assert json.loads(result.stdout) == []
    else:
        assert "empty" in result.stderr


def test_jsonl_reads_back_as_the_documents_of_the_loader(
    folder: Path, server: FaultServer, tmp_path: Path
) -> None:
    result = _load(server, "a.pdf", "-f", "jsonl", "--layout", "--out", tmp_path / "out")
    assert result.exit_code == ExitCode.OK, result.output
    text = (tmp_path / "out" / "a.pdf.jsonl").read_text(encoding="utf-8")
    documents = [Document(**json.loads(line)) for line in text.splitlines()]
    loader = DeepSeekOCRLoader("a.pdf", base_url=server.base_url, layout=True)
    assert documents == loader.load()
    assert [data.id for data in read_jsonl(text.splitlines())] == [d.id for d in documents]


def test_odd_characters_survive(folder: Path, server: FaultServer, tmp_path: Path) -> None:
    # Not every reader takes only a line feed for the end of a line.
    words = "naïve 漢字 𓀀 — “q” a\u2028b\x85c end"
    server.script = lambda _: answer(words)
    _load(server, "b.pdf", "-f", "jsonl", "-o", tmp_path)
    (line,) = (tmp_path / "b.pdf.jsonl").read_text(encoding="utf-8").splitlines()
    loaded = DeepSeekOCRLoader("b.pdf", base_url=server.base_url).load()
    assert json.loads(line)["page_content"] == loaded[0].page_content
    process = _process(server, "b.pdf", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "漢字" in out


def test_out_makes_a_file_for_each_document(
    folder: Path, server: FaultServer, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    result = _load(server, ".", "--out", out)
    assert result.exit_code == ExitCode.OK, result.output
    assert result.stdout == ""
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {"a.pdf.md", "b.pdf.md", "sub/a.pdf.md"}
    assert markers_in((out / "sub" / "a.pdf.md").read_text()) == [5, 6]


def test_out_keeps_files_of_the_same_name_apart(
    folder: Path, server: FaultServer, tmp_path: Path
) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "a.pdf").write_bytes(written_pdf([9]))
    for given in (["a.pdf", "sub/a.pdf", "other/a.pdf"], ["**/a.pdf"], ["sub", "other", "a.pdf"]):
        out = tmp_path / f"out{len(given)}{given[0][0]}"
        result = _load(server, *given, "--out", out)
        assert result.exit_code == ExitCode.OK, result.output
        texts = [markers_in(path.read_text()) for path in out.rglob("*.md")]
        assert sorted(texts) == [[1, 2, 3], [5, 6], [9]]


def test_out_replaces_a_file_of_an_earlier_run(
    folder: Path, server: FaultServer, tmp_path: Path
) -> None:
    for pages, numbers in (("1-3", [1, 2, 3]), ("2", [2])):
        _load(server, "a.pdf", "--pages", pages, "--out", tmp_path / "out")
        assert markers_in((tmp_path / "out" / "a.pdf.md").read_text()) == numbers
    assert len(list((tmp_path / "out").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("all.jsonl", []),
        ("all.JSONL", []),
        ("deep/er/all.jsonl", []),
        ("all.json", ["--format", "jsonl"]),
    ],
)
def test_out_with_an_ending_is_one_file_for_all(
    folder: Path, server: FaultServer, tmp_path: Path, name: str, options: list[str]
) -> None:
    target = tmp_path / "made" / name
    result = _load(server, ".", *options, "--out", target)
    assert result.exit_code == ExitCode.OK, result.output
    documents = read_jsonl(target.read_text(encoding="utf-8").splitlines())
    assert markers_in(" ".join(document.text for document in documents)) == [1, 2, 3, 4, 5, 6]
    assert list(target.parent.iterdir()) == [target]


def test_out_decides_the_format(folder: Path, server: FaultServer, tmp_path: Path) -> None:
    for ending, form in ((".md", "markdown"), (".txt", "text"), (".json", "json")):
        target = tmp_path / f"all{ending}"
        assert _load(server, "a.pdf", "--out", target).exit_code == ExitCode.OK
        assert target.read_text(encoding="utf-8") == _load(server, "a.pdf", "-f", form).stdout


def test_out_that_is_a_folder_stays_one(folder: Path, server: FaultServer, tmp_path: Path) -> None:
    out = tmp_path / "pages.json"
    out.mkdir()
    assert _load(server, "a.pdf", "--out", out).exit_code == ExitCode.OK
    assert [path.name for path in out.iterdir()] == ["a.pdf.json"]


def test_out_keeps_what_an_earlier_run_wrote_when_this_one_fails(
    folder: Path, server: FaultServer, tmp_path: Path
) -> None:
    target = tmp_path / "all.md"
    target.write_text("of an earlier run")
    result = _load(server, "a.pdf", "missing.pdf", "--out", target)
    assert result.exit_code == ExitCode.PAGES_FAILED
    assert target.read_text() == "of an earlier run"
    assert [path.name for path in tmp_path.glob("all*")] == ["all.md"]


def test_an_empty_argument_is_not_the_working_folder(folder: Path, server: FaultServer) -> None:
    result = _load(server, "")
    assert result.exit_code == ExitCode.NOTHING_READ
    assert "the path is empty" in result.stderr


def test_out_that_is_a_file_is_told(folder: Path, server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    result = _load(server, "a.pdf", "--out", tmp_path / "out")
    assert result.exit_code == ExitCode.USAGE
    assert "out" in result.stderr
    assert "Traceback" not in result.output
    assert (tmp_path / "out").read_text() == "mine"


def test_progress_is_shown_on_stderr_only_if_asked(folder: Path, server: FaultServer) -> None:
    asked = _load(server, "a.pdf", "--show-progress")
    assert "3/3" in asked.stderr
    assert "3/3" not in asked.stdout
    assert "3/3" not in _load(server, "a.pdf").output


# --- how it ends -----------------------------------------------------------------------------


def _fail(*numbers: int) -> Any:
    return lambda request: status(400, "no such luck") if request.marker in numbers else None


@dataclass
class Ending:
    arguments: str
    code: ExitCode
    numbers: list[int]
    failing: tuple[int, ...] = ()


@pytest.mark.parametrize(
    "ending",
    [
        Ending("a.pdf", ExitCode.PAGES_FAILED, [1], failing=(2,)),
        Ending("a.pdf", ExitCode.NOTHING_READ, [], failing=(1,)),
        Ending("a.pdf --on-error skip", ExitCode.PAGES_FAILED, [1, 3], failing=(2,)),
        Ending("a.pdf --on-error record", ExitCode.PAGES_FAILED, [1, 3], failing=(2,)),
        Ending("a.pdf --on-error skip", ExitCode.NOTHING_READ, [], failing=(1, 2, 3)),
        Ending("a.pdf --on-error record", ExitCode.NOTHING_READ, [], failing=(1, 2, 3)),
        Ending("a.pdf b.pdf --on-error skip", ExitCode.PAGES_FAILED, [1, 2, 3], failing=(4,)),
        Ending("gone.pdf b.pdf --on-error skip", ExitCode.PAGES_FAILED, [4]),
        Ending("gone.pdf b.pdf --on-error record", ExitCode.PAGES_FAILED, [4]),
        Ending("gone.pdf b.pdf", ExitCode.NOTHING_READ, []),
        Ending("b.pdf gone.pdf", ExitCode.PAGES_FAILED, [4]),
        Ending("gone.pdf gone2.pdf --on-error record", ExitCode.NOTHING_READ, []),
    ],
    ids=lambda ending: ending.arguments,
)
def test_fault_42_the_exit_code_tells_what_was_read(
    folder: Path, server: FaultServer, ending: Ending
) -> None:
    server.script = _fail(*ending.failing)
    result = _load(server, "--max-concurrency", 1, *ending.arguments.split())
    assert result.exit_code == ending.code, result.output
    assert markers_in(result.stdout) == ending.numbers
    assert "no such luck" in result.stderr or "gone.pdf" in result.stderr


def test_out_writes_the_others_when_one_document_fails(
    folder: Path, server: FaultServer, tmp_path: Path
) -> None:
    (folder / "bad.pdf").write_bytes(b"%PDF-1.7\nnothing of use")
    out = tmp_path / "out"
    result = _load(server, "a.pdf", "bad.pdf", "b.pdf", "--on-error", "skip", "--out", out)
    assert result.exit_code == ExitCode.PAGES_FAILED
    assert "bad.pdf" in result.stderr
    assert {path.name for path in out.iterdir()} == {"a.pdf.md", "b.pdf.md"}


def test_a_document_that_ends_the_run_leaves_no_half_file(
    folder: Path, server: FaultServer, tmp_path: Path
) -> None:
    server.script = _fail(2)
    out = tmp_path / "out"
    result = _load(server, "b.pdf", "a.pdf", "--out", out)
    assert result.exit_code == ExitCode.PAGES_FAILED
    assert {path.name for path in out.iterdir()} == {"b.pdf.md"}


def test_record_says_so_in_the_metadata(folder: Path, server: FaultServer) -> None:
    server.script = _fail(2)
    values = json.loads(_load(server, "a.pdf", "-f", "json", "--on-error", "record").stdout)
    assert [value["metadata"]["ocr_status"] for value in values] == ["ok", "failed", "ok"]


def test_a_dead_server_has_a_code_of_its_own(folder: Path, server: FaultServer) -> None:
    server.kill()
    for policy in ("raise", "skip"):
        result = _load(server, "a.pdf", "--retries", 0, "--on-error", policy)
        assert result.exit_code == ExitCode.SERVER, result.output


def test_a_wrong_key_has_the_code_of_the_server(folder: Path) -> None:
    with FaultServer(api_key="right-one") as server:
        result = _load(server, "a.pdf", "--api-key", "wrong-one")
    assert result.exit_code == ExitCode.SERVER
    assert "wrong-one" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.pdf", "--dpi", "nope"],
        ["a.pdf", "--dpi", "1"],
        ["a.pdf", "--pages", "0"],
        ["a.pdf", "--mode", "book"],
        ["a.pdf", "--images", "save"],
        ["a.pdf", "--no-such-option"],
        ["a.pdf", "--format", "docx"],
        [],
    ],
)
def test_what_cannot_be_used_is_told_before_anything_is_sent(
    folder: Path, server: FaultServer, arguments: list[str]
) -> None:
    result = _load(server, *arguments)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert "Traceback" not in result.output
    assert server.paths == []


def test_secrets_are_not_printed(folder: Path) -> None:
    with FaultServer(api_key="sk-very-secret") as server:
        arguments = ["a.pdf", "--api-key", "sk-very-secret", "--password", "hush-hush"]
        good = _load(server, *arguments)
        assert markers_in(good.stdout) == [1, 2, 3]
        server.script = lambda _: status(400, "no such luck")
        bad = _load(server, *arguments)
        usage = _load(server, *arguments, "--pages", "0")
        verbose = CliRunner().invoke(app, ["-v", "load", *arguments, "--base-url", server.base_url])
    for result in (good, bad, usage, verbose):
        assert "very-secret" not in result.output
        assert "hush" not in result.output


def test_the_key_comes_from_the_environment(folder: Path) -> None:
    with FaultServer(api_key="sk-very-secret") as server:
        process = _process(server, "a.pdf", env={"DEEPSEEK_OCR_API_KEY": "sk-very-secret"})
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert markers_in(out) == [1, 2, 3]
        assert "very-secret" not in out + err


def test_ctrl_c_leaves_no_half_file(folder: Path, server: FaultServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    server.script = lambda request: silence() if request.marker == 3 else None
    process = _process(server, "b.pdf", "a.pdf", "--out", out, start_new_session=True)
    deadline = time.monotonic() + 150
    while not list(out.glob("a.pdf.md*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(out.glob("a.pdf.md.part")), "the second document is under way"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert "Traceback" not in err
    assert {path.name for path in out.iterdir()} == {"b.pdf.md"}
    assert server.wait_idle()


def test_head_does_not_trace_back(folder: Path, server: FaultServer) -> None:
    (folder / "long.pdf").write_bytes(written_pdf(range(200)))
    process = _process(server, "long.pdf", "-f", "jsonl", cwd=folder)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(200) == 0, err
    assert markers_in(json.loads(first)["page_content"]) == [0]
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    assert len(server.requests) < 200


# --- the options -----------------------------------------------------------------------------


def test_every_setting_is_an_option() -> None:
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["load", "--help"])
    assert result.exit_code == 0
    offered = set(re.findall(r"--[a-z][a-z-]+", result.output))
    objects = {"on_page", "server"}
    wanted = {
        f"--{name.replace('_', '-')}" for name in Settings.model_fields if name not in objects
    }
    assert wanted <= offered, wanted - offered
    for field in Settings.model_fields.values():
        assert field.description


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--layout"], "layout", True),
        (["--no-skip-blank"], "skip_blank", False),
        (["--dpi", "200"], "dpi", 200),
        (["--rotate", "90"], "rotate", 90),
        (["--timeout", "1.5"], "timeout", 1.5),
        (["--max-concurrency", "7"], "max_concurrency", 7),
        (["--pages", "1-2,5-"], "pages", ((1, 2), (5, None))),
        (["--mode", "element"], "mode", "element"),
        (["--cache", "on"], "cache", True),
        (["--cache", "off"], "cache", False),
        (["--cache", "/some/where"], "cache", Path("/some/where")),
        (["--image-dir", "pictures", "--images", "save"], "image_dir", Path("pictures")),
        (["--page-separator", "---"], "page_separator", "---"),
        (["--engine", "rapidocr"], "engine", "rapidocr"),
        (["--model", "m"], "model", "m"),
    ],
)
def test_options_arrive_as_settings(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str, value: object
) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr("deepseek_ocr_loaders.cli._Load.run", lambda job: seen.append(job.settings))
    result = CliRunner().invoke(app, ["load", "x.pdf", *arguments])
    assert result.exit_code == 0, result.output
    assert getattr(seen[0], name) == value


def test_several_servers_share_the_pages(folder: Path, server: FaultServer) -> None:
    (folder / "long.pdf").write_bytes(written_pdf(range(40)))
    with FaultServer(seconds=0.01) as other:
        server.seconds = 0.01
        result = _load(server, "long.pdf", "--base-url", other.base_url)
        assert markers_in(result.stdout) == list(range(40))
        assert other.requests
        assert server.requests


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"deepseek-ocr-loaders \d+\.\d+\S*\n", result.stdout)
