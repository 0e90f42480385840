"""Every wrong input costs one clear line and exit code 2, before anything is loaded where that is possible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Cli, Said

SIMULATED = ("--runtime", "simulated")
STREAM = '[[stream]]\nname = "a"\nclass = "foreground"\nclients = 1\nprompt_tokens = 8\nmax_tokens = 8\n'


def assert_one_line(said: Said, *words: str) -> None:
    assert said.code == 2
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if not line.endswith("…")]
    assert len(lines) == 1, said.err
    assert lines[0].startswith("dlfp-edge: error: ")
    for word in words:
        assert word in lines[0]


def assert_one_line_at_the_end(said: Said, *words: str) -> None:
    """As above, after notes on the way."""
    assert_one_line(Said(said.code, said.out, said.err.splitlines()[-1]), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "chat-injest"], ["chat-injest", "chat-ingest"]),
        (["run", "--controller", "dlpf"], ["dlpf", "dlfp"]),
        (["run", "--setting", "lans/dlfp"], ["lans", "lanes"]),
        (["run", "--setting", "shared/unlimted"], ["unlimted", "unlimited"]),
        (["run", "--controller", "fixed:0"], ["fixed:0"]),
        (["run", "--controller", "fixed:many"], ["fixed:many"]),
        (["run", "--placement", "lanes", "--controller", "fixed:8"], ["shared"]),
        (["run", "--preset", "egde"], ["egde", "edge"]),
        (["run", "--set", "c_mim=3", "--setting", "shared/dlfp"], ["c_mim", "c_min"]),
        (["run", "--set", "c_min"], ["NAME=VALUE"]),
        (["run", "--set", "c_min=low"], ["c_min", "low"]),
        (["run", "--target-itl", "-80ms"], ["--target-itl", "-80ms"]),
        (["run", "--target-itl", "0ms"], ["--target-itl", "above zero"]),
        (["run", "--target-itl", "soon"], ["--target-itl", "soon"]),
        (["run", "--target-itl", "80"], ["--target-itl", "no unit", "80ms", "0.08s"]),
        (["run", "--pace", "0"], ["--pace", "above zero"]),
        (["run", "--out", ""], ["--out", "empty"]),
        (["run", "--model", ""], ["--model", "empty"]),
        (["run", "--background", ""], ["--background", "empty"]),
        (["compare", "demo", "--settings", "lanes/dlfp,lanes/dlfp"], ["--settings", "lanes/dlfp", "twice"]),
        (["run", "--target-itl", "80ms", "--slowdown", "2"], ["only one"]),
        (["run", "--slowdown", "0.5"], ["--slowdown"]),
        (["run", "--pace", "-1"], ["--pace"]),
        (["run", "--duration", "0"], ["--duration"]),
        (["run", "--scale", "0"], ["--scale"]),
        (["run", "--scale", "nan"], ["--scale"]),
        (["run", "--scale", "1e300"], ["--scale", "1000"]),
        (["run", ""], ["unknown workload ''"]),
        (["run", "--controller", ""], ["unknown controller ''"]),
        (["run", "--setting", "shared/fcsf"], ["fcsf", "'fcfs'"]),
        (["run", "--placement", "lanes", "--controller", "fcfs"], ["fcfs", "--placement shared"]),
        (["run", "--setting", "shared/no-priority"], ["no-priority", "--placement lanes"]),
        (["run", "--setting", "shared/stall-cap:T=slow"], ["stall-cap:T=slow", "number"]),
        (["run", "--setting", "shared/stall-cap:T=nan"], ["T=nan", "above 0"]),
        (["run", "--setting", "shared/predictor"], ["bench predictor"]),
        (["run", "--setting", "shared/tick:T=1:c_max"], ["c_max", "NAME=VALUE"]),
        (["run", "--setting", "shared/tick:c_initial=3"], ["c_initial", "has no parameter"]),
        (["run", "--setting", "shared/fcfs:T=1"], ["fcfs", "has no parameter"]),
        (["run", "--setting", "shared/dlfp", "--placement", "lanes"], ["--setting", "--placement"]),
        (["run", "--setting", "shared/unlimited", "--controller", "dlfp"], ["--setting", "--controller"]),
        (["run", "--foreground", "hi", "--background-prompt", "x"], ["--background-prompt", "--background"]),
        (["run", "--stop", "x"], ["--stop", "--foreground"]),
        (["run", "--foreground", "hi", "--stop", ""], ["stop string", "1 to 256"]),
        (["run", "--foreground", "\udcff\udcfe"], ["--foreground", "UTF-8"]),
        (["run", *SIMULATED, "--model", "."], ["simulated", "--model"]),
        (["run", "--threads", "0"], ["--threads"]),
        (["run", "--ctx", "0"], ["--ctx"]),
        (["run", "--foreground", ""], ["--foreground", "empty"]),
        (["run", "--foreground", "@nowhere.txt"], ["nowhere.txt"]),
        (["run", "--background", "nowhere.txt"], ["--background", "nowhere.txt"]),
        (["run", "--background-prompt", "Summarise"], ["--background"]),
        (["run", "demo", "--foreground", "Hello"], ["demo"]),
        (["run", "--runtime", "lama_cpp"], ["llama_cpp"]),
        (["run", *SIMULATED, "--runtime-option", "mode=fast"], ["fast"]),
        (["compare", *SIMULATED, "--runtime-option", "mode=fast"], ["fast"]),
        (["compare", *SIMULATED, "--runtime-option", "fast"], ["--runtime-option", "NAME=VALUE"]),
        (["bench", "curve", *SIMULATED, "--runtime-option", "mode=fast"], ["fast"]),
        (["bench", "memory", *SIMULATED, "--runtime-option", "mode=fast"], ["fast"]),
        (["bench", "crowded", *SIMULATED, "--runtime-option", "fast"], ["--runtime-option", "NAME=VALUE"]),
        (["bench", "restarts", *SIMULATED, "--runtime-option", "mode=fast"], ["fast"]),
        (["bench", "curve", *SIMULATED, "--runtime-option", "fast"], ["--runtime-option", "NAME=VALUE"]),
        (["run", *SIMULATED, "--runtime-option", "mode"], ["NAME=VALUE"]),
        (["run", "nowhere.toml"], ["nowhere.toml"]),
        (["run", "--fast"], ["--fast"]),
        (["run", "--seed", "x"], ["--seed"]),
        (["rum"], ["rum"]),
        (["bench", "overhead", "--streams", "1,none"], ["--streams"]),
        (["bench", "preempt", "--periods", "0"], ["--periods"]),
        (["compare", "demo", "--settings", "lanes/dlfp,shard/dlfp"], ["shard", "shared"]),
        (["bench", "memory", *SIMULATED, "--ctx", "10"], ["--ctx", "1024"]),
        (["compare", "demo", "--gaps", "0"], ["--gaps"]),
        (["compare", "demo", "--settings", "auto"], ["--settings", "nothing to compare"]),
        (["compare", "demo", "--cap", "soon"], ["--cap", "soon"]),
        (["compare", "demo", "--seeds", "1,x"], ["--seeds", "1,x"]),
        (["compare", "demo", "--seeds", "1,1"], ["--seeds", "different"]),
        (["compare", "demo", "--seeds", "-1"], ["--seeds"]),
        (["compare", "demo", "--settings", "shared/fixed:*"], ["--settings", "candidate"]),
        (["compare", "demo", "--peer", "llama-servr"], ["llama-servr", "llama-server"]),
        (["compare", "demo", "--peer-binary", "/bin/true"], ["--peer"]),
        (["compare", *SIMULATED, "--peer", "llama-server"], ["--runtime simulated"]),
        (["compare", "demo", "--endpoint", "nonsense"], ["nonsense"]),
    ],
)
def test_wrong_words(cli: Cli, arguments: list[str], words: list[str]) -> None:
    assert_one_line(cli(*arguments), *words)


def test_no_folder_stays_behind(cli: Cli, tmp_path: Path) -> None:
    cli("run", "--model", "nowhere.gguf", "--out", "left")
    assert not (tmp_path / "left").exists()


def test_out_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_one_line(cli("run", *SIMULATED, "--out", "file/run"), "--out", "file/run")


def test_unreadable_background_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    assert_one_line(cli("run", *SIMULATED, "--background", "picture.png"), "picture.png", "UTF-8")


def test_empty_files_are_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    assert_one_line(cli("run", *SIMULATED, "--background", "empty.txt"), "--background empty.txt is empty")
    stream = STREAM.replace("prompt_tokens = 8", 'texts = ["empty.txt"]') + "requests = 1\n"
    (tmp_path / "own.toml").write_text('name = "w"\ndescription = "d"\n' + stream)
    assert_one_line(cli("run", *SIMULATED, "own.toml"), "own.toml", "stream 'a'", "empty.txt is empty")


def test_what_is_no_text_in_a_folder_is_passed_over_and_named(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    assert_one_line_at_the_end(cli("run", *SIMULATED, "--background", "notes"), "notes holds no text")
    (folder / "note.txt").write_text("The harbour opens at six.")
    said = cli("run", *SIMULATED, "--background", "notes", "--quiet")
    assert said.code == 0
    assert "passed over" in said.err
    assert "picture.png" in said.err


def test_a_document_that_is_too_long_is_named_before_any_is_worked_on(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("short")
    (folder / "z.txt").write_text("word " * 2000)
    said = cli("run", *SIMULATED, "--ctx", "2048", "--background", "notes", "--out", "files")
    assert_one_line(said, "notes/z.txt", "--ctx")
    assert not (tmp_path / "files").exists()


def test_a_refused_run_leaves_an_earlier_one_as_it_was(cli: Cli, tmp_path: Path) -> None:
    run = ("run", "chat-ingest", *SIMULATED, "--duration", "2", "--out", "files")
    assert cli(*run).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    assert cli(*run, "--ctx", "64").code == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()} == before


def test_a_folder_of_the_users_stays(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert cli("run", *SIMULATED, "--runtime-option", "x=1", "--out", "mine").code == 2
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize("text", ["texts = ['a\\u0000b']", 'texts = ["a\\u0000b"]'])
def test_a_name_that_no_file_can_have(cli: Cli, tmp_path: Path, text: str) -> None:
    stream = STREAM.replace("prompt_tokens = 8", text) + "requests = 1\n"
    (tmp_path / "own.toml").write_text('name = "w"\ndescription = "d"\n' + stream)
    assert_one_line(cli("run", *SIMULATED, "own.toml"), "own.toml")


def test_a_byte_order_mark_is_no_part_of_a_text(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(
        b"\xef\xbb\xbf" + b'name = "w"\ndescription = "d"\n' + STREAM.encode() + b"requests = 1\n"
    )
    assert cli("run", *SIMULATED, "own.toml", "--quiet").code == 0


def test_more_threads_than_cpus_are_not_measured(cli: Cli) -> None:
    assert_one_line(cli("bench", "curve", *SIMULATED, "--threads", "9999"), "--threads", "9999")


@pytest.mark.parametrize("group", ["bench", "models"])
def test_a_group_alone_shows_its_commands(cli: Cli, group: str) -> None:
    said = cli(group)
    assert "Commands" in said.out + said.err


def test_empty_background_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert_one_line(cli("run", *SIMULATED, "--background", "notes"), "notes")


def test_prompt_longer_than_the_context(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 2000)
    said = cli("run", *SIMULATED, "--quiet", "--ctx", "2048", "--foreground", "@long.txt")
    assert_one_line(said, "9999 tokens", "--ctx")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "w"\ndescription = "d"\nduraton_s = 5.0\n' + STREAM, ["duraton_s", "duration_s"]),
        ('name = "w"\ndescription = "d"\nduration_s = 5.0\n' + STREAM + "pase = 3.0\n", ["pase", "pace"]),
        ("name = ", ["TOML"]),
    ],
)
def test_workload_file(cli: Cli, tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "own.toml").write_text(text)
    assert_one_line(cli("run", *SIMULATED, "own.toml"), "own.toml", *words)


@pytest.mark.parametrize("content", [b"GGUF\x03\x00\x00\x00\x10\x00", b"just some text\n", b""])
def test_broken_model_files(cli: Cli, tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "model.gguf").write_bytes(content)
    assert_one_line(cli("run", "--model", "model.gguf"), "model.gguf")


@pytest.mark.parametrize("command", ["run", "compare", "bench curve"])
def test_a_model_that_may_not_be_read(cli: Cli, tmp_path: Path, command: str) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "model.gguf").symlink_to("/proc/self/mem")
    if not (tmp_path / "model.gguf").exists():
        pytest.skip("the system has no file that cannot be read")
    assert_one_line(cli(*command.split(), "--model", "model.gguf"), "model.gguf")


def test_missing_model(cli: Cli) -> None:
    pytest.importorskip("llama_cpp")
    assert_one_line(cli("run", "--model", "nowhere.gguf"), "nowhere.gguf")


def test_unknown_shape(cli: Cli) -> None:
    pytest.importorskip("llama_cpp")
    assert_one_line(cli("models", "synth", "qwen3-0.6", "--out", "m.gguf"), "qwen3-0.6")


@pytest.mark.parametrize(
    "arguments",
    [
        ("models", "synth", "nosuch", "--out", "m.gguf"),
        ("models", "synth", "qwen3-0.6b", "--quant", "Q3", "--out", "m.gguf"),
        ("bench", "curve", "--runtime", "nosuch"),
        ("bench", "curve", "--model", "nowhere.gguf"),
        ("bench", "curve", "--out", ""),
        ("compare", "--model", "nowhere.gguf"),
        ("models", "synth", "qwen3-0.6b", "--out", ""),
        ("run", "--runtime", "nosuch"),
    ],
)
def test_nothing_is_announced_before_a_wrong_word(cli: Cli, arguments: tuple[str, ...]) -> None:
    pytest.importorskip("llama_cpp")
    said = cli(*arguments)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1


def test_the_measuring_process_hands_on_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlfp_edge.bench.memory import memory
    from dlfp_edge.errors import UsageError

    with pytest.raises(UsageError, match="unknown runtime"):
        memory("nosuch", None, 1024, {})


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [("2>&-", 0, ""), (">&-", 1, "stdout"), (">/dev/full", 1, "stdout"), ("2>/dev/full", 0, "")],
)
def test_streams_that_take_nothing(tmp_path: Path, redirection: str, code: int, words: str) -> None:
    command = f"'{sys.executable}' -m dlfp_edge.cli.main run chat-ingest --runtime simulated --duration 2 --out f"
    done = subprocess.run(
        ["sh", "-c", f"{command} {redirection}"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "command",
    ["--help", "--version", "run --help", "models", "models list", "models list --json", "bench curve --largest 2", ""],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_a_full_disk_refuses_is_one_line(tmp_path: Path, command: str, unbuffered: str) -> None:
    if command.startswith("models list"):
        pytest.importorskip("llama_cpp")
    arguments = [*command.split(), *(SIMULATED if command.startswith("bench") else ())]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dlfp_edge.cli.main", *arguments],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("dlfp-edge: ") or "Error" in line]
    assert lines == ["dlfp-edge: error: cannot write to stdout: No space left on device"]


def test_as_a_process() -> None:
    done = _process("run", "--controller", "nope")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_traceback_only_when_asked_for() -> None:
    done = _process("run", "--controller", "nope", DLFP_EDGE_DEBUG="1")
    assert "Traceback" in done.stderr


def test_help_teaches() -> None:
    done = _process("run", "--help")
    assert done.returncode == 0
    for word in ("Examples", "lanes", "shared", "ITL", "TTFT"):
        assert word in done.stdout


def _process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlfp_edge.cli.main", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
