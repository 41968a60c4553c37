"""Pins: checkpoints that stay readable while they are used."""

import os
import subprocess
import sys

import pytest

from appliance.estimator import Estimator, RunConfig, checkpoints
from tests.appliance.models import line, linear_model_fn


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = RunConfig(str(tmp_path_factory.mktemp("model")), keep_checkpoint_max=1)
    return Estimator(linear_model_fn, config=config).train(line(repeat=None), steps=2)


def test_a_pinned_checkpoint_survives_its_deletion(trained):
    path = trained.latest_checkpoint()
    with checkpoints.pinned(path) as pin:
        trained.train(line(repeat=None), steps=1)
        assert not os.path.exists(f"{path}.index")
        results = trained.evaluate(line(), checkpoint_path=pin)
        assert results["global_step"] == int(path.rsplit("-", 1)[1])
        assert checkpoints.unpinned(pin) == path
    assert os.listdir(os.path.join(trained.model_dir, "eval-pins")) == []


def test_pins_of_one_checkpoint_do_not_disturb_each_other(trained):
    path = trained.latest_checkpoint()
    with checkpoints.pinned(path) as first:
        with checkpoints.pinned(path) as second:
            assert first != second
        assert checkpoints.global_step(first) == checkpoints.global_step(path)


def test_pins_of_dead_processes_are_swept_and_those_of_living_ones_are_not(trained):
    path = trained.latest_checkpoint()
    holder = (
        "import os, sys; from appliance.estimator import checkpoints\n"
        "with checkpoints.pinned(sys.argv[1]) as pin:\n"
        "    print(pin, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", holder, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pin = process.stdout.readline().strip()
    with checkpoints.pinned(path):
        assert os.path.exists(f"{pin}.index")
    process.kill()
    process.communicate()
    assert os.path.exists(f"{pin}.index")
    checkpoints.sweep_pins(trained.model_dir)
    assert not os.path.exists(os.path.dirname(pin))


def test_a_missing_checkpoint_cannot_be_pinned(trained):
    with (
        pytest.raises(FileNotFoundError, match=r"No checkpoint at .*model\.ckpt-99"),
        checkpoints.pinned(os.path.join(trained.model_dir, "model.ckpt-99")),
    ):
        pass


def test_other_paths_are_no_pins():
    assert checkpoints.unpinned("a/model.ckpt-1") == "a/model.ckpt-1"
    assert checkpoints.unpinned("model.ckpt-1") == "model.ckpt-1"
