"""Which file of a repository is meant."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.errors import UsageError
from dlfp_edge.runtimes.llama_cpp.choice import choose

QUANTS = [
    "BF16",
    "Q2_K",
    "Q3_K_M",
    "Q4_0",
    "Q4_1",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "Q8_0",
    "IQ4_NL",
    "IQ4_XS",
    "UD-Q4_K_XL",
]
REPOSITORY = [f"gemma-3-270m-it-{quant}.gguf" for quant in QUANTS]
OTHERS = ["README.md", "mmproj-F16.gguf", "gemma-3-270m-it.imatrix.gguf", "config.json"]


def refusal(files: list[str], asked: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        choose(files, asked, "hf:o/r")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("without", "chosen"),
    [
        ([], "Q4_K_M"),
        (["Q4_K_M"], "Q4_K_S"),
        (["Q4_K_M", "Q4_K_S", "UD-Q4_K_XL"], "IQ4_NL"),
        ([quant for quant in QUANTS if "Q4" in quant], "Q5_K_M"),
        ([quant for quant in QUANTS if "Q4" in quant or "Q5" in quant], "Q6_K"),
        ([quant for quant in QUANTS if quant not in ("BF16", "Q2_K", "Q8_0")], "Q8_0"),
        ([quant for quant in QUANTS if quant != "BF16"], "BF16"),
    ],
)
def test_the_quantisation_that_suits_best(without: list[str], chosen: str) -> None:
    files = [file for file in REPOSITORY if not any(file.endswith(f"-{quant}.gguf") for quant in without)] + OTHERS
    random.Random(1).shuffle(files)
    assert choose(files, None, "hf:o/r") == (f"gemma-3-270m-it-{chosen}.gguf",)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("Q4_K_M", "Q4_K_M"),
        ("q8_0", "Q8_0"),
        ("Q4_0", "Q4_0"),
        ("XL", "UD-Q4_K_XL"),
        ("gemma-3-270m-it-Q4_1.gguf", "Q4_1"),
        ("4_nl", "IQ4_NL"),
    ],
)
def test_a_part_of_the_name_is_enough(asked: str, chosen: str) -> None:
    assert choose(REPOSITORY + OTHERS, asked, "hf:o/r") == (f"gemma-3-270m-it-{chosen}.gguf",)


def test_a_part_that_fits_several() -> None:
    message = refusal(REPOSITORY, "Q4_K")
    assert "several" in message
    assert "gemma-3-270m-it-Q4_K_M.gguf" in message
    assert "gemma-3-270m-it-Q4_K_S.gguf" in message
    assert "Q8_0" not in message


def test_nothing_fits() -> None:
    message = refusal(REPOSITORY, "Q7")
    assert "no model 'Q7'" in message
    assert "and 6 more" in message


def test_several_models_are_listed() -> None:
    message = refusal(["small-Q4_K_M.gguf", "large-Q4_K_M.gguf"])
    assert "several models" in message
    assert "large-Q4_K_M.gguf, small-Q4_K_M.gguf" in message
    assert choose(["small-Q4_K_M.gguf", "large-Q4_K_M.gguf"], "large", "x") == ("large-Q4_K_M.gguf",)


@pytest.mark.parametrize("files", [[], OTHERS, ["model.safetensors"]])
def test_no_model_at_all(files: list[str]) -> None:
    assert "no GGUF model" in refusal(files)


def test_one_model_of_any_name() -> None:
    assert choose(["ggml-model.gguf", "mmproj-model.gguf"], None, "x") == ("ggml-model.gguf",)


def test_parts_stay_together() -> None:
    parts = [f"Q8_0/big-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    files = [*parts, "big-BF16.gguf"]
    assert choose(files, None, "x") == tuple(parts)
    assert choose(files, parts[1], "x") == tuple(parts)
    assert choose(files, "Q8_0", "x") == tuple(parts)
    assert parts[2] in refusal(parts[:2])


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=5), st.none() | st.text(max_size=5))
def test_any_list_gives_files_of_it_or_one_line(names: list[str], asked: str | None) -> None:
    files = [f"{name}.gguf" for name in names]
    try:
        chosen = choose(files, asked, "x")
    except UsageError:
        return
    assert chosen
    assert set(chosen) <= set(files)
