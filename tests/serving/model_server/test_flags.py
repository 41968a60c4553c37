"""A command line is read as tensorflow_model_server reads it."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.model_server.flags import ALWAYS_SO, FLAGS, FlagError, parse, usage


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--port=9000"], "port", 9000),
        (["--port", "9000"], "port", 9000),
        (["-port=9000"], "port", 9000),
        (["--file_system_poll_wait_seconds=-1"], "file_system_poll_wait_seconds", -1),
        (["--enable_model_warmup=false"], "enable_model_warmup", False),
        (
            ["--allow_version_labels_for_unavailable_models"],
            "allow_version_labels_for_unavailable_models",
            True,
        ),
        (["--version", "--port=1"], "version", True),
        (["--model_base_path=/a=b"], "model_base_path", "/a=b"),
        ([], "max_num_load_retries", 5),
        ([], "load_retry_interval_micros", 60_000_000),
    ],
)
def test_values_are_read(arguments: list[str], name: str, value: object) -> None:
    assert getattr(parse(arguments), name) == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model_path=/m"], "unknown argument: --model_path. Did you mean --model_"),
        (["--rest_port=1"], "Did you mean --rest_api_port"),
        (["--qqqqqqqqqq"], "unknown argument: --qqqqqqqqqq. --help lists the flags"),
        (["serve"], "'serve' is no flag"),
        (["--port=http"], "--port takes a whole number; got 'http'"),
        (["--port"], "--port needs a value"),
        (["--enable_model_warmup=maybe"], "takes true or false; got 'maybe'"),
    ],
)
def test_wrong_command_lines_say_what_would_be_right(arguments: list[str], message: str) -> None:
    with pytest.raises(FlagError, match=message):
        parse(arguments)


def test_flags_without_effect_are_taken_with_a_warning() -> None:
    for flag in FLAGS:
        if not flag.works:
            other = {bool: not flag.default, int: 7, str: "x"}[type(flag.default)]
            told = parse([f"--{flag.name}={other}"]).warnings
            assert told == ([] if flag.name in ALWAYS_SO else [f"--{flag.name} has no effect in this server"])
    assert parse(["--enable_batching", "--tensorflow_session_parallelism=4"]).warnings == []


def test_help_names_every_flag() -> None:
    text = usage()
    assert [flag.name for flag in FLAGS if f"--{flag.name}" not in text] == []


def test_the_document_names_every_flag_that_works() -> None:
    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    assert [flag.name for flag in FLAGS if flag.works and f"`--{flag.name}`" not in text] == []


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["--help"], 0, "--model_config_file"),
        (["--version"], 0, "TensorFlow Library: 2."),
        (["--prot=1"], 255, "unknown argument: --prot. Did you mean --port?"),
        (["--port=0", "--model_base_path=/m"], 255, "nowhere to listen"),
        ([], 1, "nothing to serve"),
    ],
)
def test_the_program_ends_at_once_when_there_is_nothing_to_serve(
    arguments: list[str], code: int, output: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "serving.model_server", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert output in done.stdout + done.stderr
