"""Training with an evaluator in a second process, through whatever kills or ends either of them."""

import fcntl
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from appliance.estimator import continuous, evaluator_process
from appliance.estimator.continuous import EvaluatorFailed
from appliance.estimator.evaluator_main import LOCK_FILE, only_evaluator
from tests.appliance.tiny_experiment import (
    DEADLINE_SECONDS,
    config,
    experiment,
    newest_step,
    no_experiment,
)
from tests.waiting import wait_until


def of_kind(events, kind):
    return [event for event in events if event["kind"] == kind]


def test_an_evaluation_survives_the_death_of_its_process_and_the_deletion_of_its_checkpoint(tmp_path):
    """keep_checkpoint_max=1. The first evaluator is killed at work; the second outlives its checkpoint."""
    events = []
    model_dir, gates = tmp_path / "model", tmp_path / "gates"
    gates.mkdir()
    release = [gates / f"release-{number}" for number in range(1, 9)]

    def killed_and_overtaken():
        """Yield after each training step; the steps wait here for what the evaluators do."""
        while not of_kind(events, "checkpoint") or newest_step(model_dir) < 10:
            yield
        wait_until((gates / "evaluating-1").exists, "first evaluation", DEADLINE_SECONDS)
        (process,) = multiprocessing.active_children()
        process.kill()
        wait_until((gates / "evaluating-2").exists, "evaluation by the second process", DEADLINE_SECONDS)
        while newest_step(model_dir) < 30:
            yield
        assert not (model_dir / "model.ckpt-10.index").exists()
        for file in release[1:]:
            file.touch()
        wait_until(lambda: of_kind(events, "evaluation"), "end of the evaluation", DEADLINE_SECONDS)

    script = killed_and_overtaken()
    result = continuous.run(
        experiment,
        config(model_dir, keep_checkpoint_max=1),
        {"hold": str(gates)},
        on_event=events.append,
        should_stop=lambda: next(script, "stop") == "stop",
    )
    assert result.stopped
    assert result.step == newest_step(model_dir) >= 30
    evaluated = {event["step"]: event["metrics"] for event in of_kind(events, "evaluation")}
    last = result.step
    assert (min(evaluated), max(evaluated)) == (10, last)
    assert evaluated[10]["loss"] > evaluated[last]["loss"] == result.evaluation["loss"]
    exported = [(event["name"], event["step"]) for event in of_kind(events, "export")]
    assert exported == [(name, step) for step in evaluated for name in ("latest", "best")] + [("final", last)]
    assert all(event["metrics"] == evaluated[event["step"]] for event in of_kind(events, "export"))
    kept = [(export.name, export.step) for export in result.exports]
    assert kept == [pair for pair in exported if pair[0] != "latest" or pair[1] == last]
    assert all(os.path.exists(os.path.join(e.path, "saved_model.pb")) for e in result.exports)
    progress = of_kind(events, "train")[-1]
    assert (progress["step"], progress["max_steps"]) == (result.step, None)
    assert progress["loss"] > 0
    assert progress["steps_per_second"] > 0
    assert not multiprocessing.active_children()


def test_after_sigkill_of_the_training_the_evaluator_ends_and_a_new_run_goes_on(tmp_path):
    model_dir = tmp_path / "model"
    command = [sys.executable, "-m", "tests.appliance.tiny_experiment", str(model_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        for line in training.stdout:
            if json.loads(line)["kind"] == "evaluation":
                break
        children = psutil.Process(training.pid).children(recursive=True)
        training.kill()
        for child in children:
            child.terminate()  # As one who ends the whole process group does.
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert not alive, "the evaluator has not ended by itself"
    record = json.loads((model_dir / "eval" / "evaluated.json").read_text())
    killed_at = newest_step(model_dir)
    assert record["last"]["step"] == killed_at
    assert [offer["final"] for offer in record["last"]["offers"].values()] == [False] * 3

    # The input of the new run ends; its evaluations become no better, as the weight has reached its value.
    best = (model_dir / "export" / "best" / "best.json").read_text()
    events = []
    result = continuous.run(
        experiment, config(model_dir), {"batches": 25, "rate": 0.0}, on_event=events.append
    )
    assert (result.step, result.stopped) == (killed_at + 25, False)
    evaluated = [event["step"] for event in of_kind(events, "evaluation")]
    assert min(evaluated) > killed_at
    assert evaluated[-1] == result.step
    assert {event["name"] for event in of_kind(events, "export")} == {"latest", "final"}
    assert (model_dir / "export" / "best" / "best.json").read_text() == best
    assert [export.name for export in result.exports][-2:] == ["latest", "final"]
    assert result.exports[0].name == "best", "exports of the killed run are lost"


def test_a_hook_that_stops_training_early_ends_the_evaluator_too(tmp_path):
    events = []
    result = continuous.run(experiment, config(tmp_path), {"stop_at": 25}, on_event=events.append)
    assert (result.step, result.stopped) == (25, False)
    assert result.evaluation["global_step"] == 25
    assert of_kind(events, "export")[-1]["name"] == "final"
    assert [event["step"] for event in of_kind(events, "checkpoint")] == [0, 10, 20, 25]
    last = of_kind(events, "train")[-1]
    # Each step takes 5 % off the distance of the weight from 2; the loss is 2.5 times its square.
    assert (last["step"], last["loss"]) == (25, pytest.approx(2.5 * (2 * 0.95**24) ** 2, rel=1e-5))

    # All is done: a further run trains, evaluates and exports nothing, and finds the same result.
    again = []
    same = continuous.run(experiment, config(tmp_path), {"steps": 25}, on_event=again.append)
    assert same == result
    assert not again


def test_when_training_fails_its_last_checkpoint_is_evaluated_and_its_error_raised(tmp_path):
    events = []
    with pytest.raises(tf.errors.OpError, match="the disk is gone"):
        continuous.run(experiment, config(tmp_path), {"broken_training": True}, on_event=events.append)
    assert of_kind(events, "evaluation")[-1]["step"] == newest_step(tmp_path) == 10
    assert {event["name"] for event in of_kind(events, "export")} == {"latest", "best"}


def test_an_evaluator_that_keeps_failing_stops_training_and_shows_its_traceback(tmp_path, monkeypatch):
    """An evaluation alone is no progress: here each is followed by an export that fails."""
    monkeypatch.setattr(evaluator_process, "MAX_FAILURES", 2)
    events = []
    with pytest.raises(EvaluatorFailed, match="failed 2 times") as caught:
        continuous.run(experiment, config(tmp_path), {"broken_export": True}, on_event=events.append)
    assert of_kind(events, "evaluation")
    assert "in broken_export" in caught.value.reason
    assert "LookupError: no room for exports" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert newest_step(tmp_path) > 0, "training left no checkpoint"


def test_what_cannot_be_sent_to_the_other_process_is_refused_at_once(tmp_path):
    with pytest.raises(TypeError, match="experiment_fn must be a function of a module"):
        continuous.run(lambda run_config, params: None, config(tmp_path), {})
    with pytest.raises(TypeError, match=r"must return an Experiment. Received: 3"):
        continuous.run(no_experiment, config(tmp_path), {})
    assert not Path(tmp_path, "eval").exists()


def test_a_cluster_is_refused(tmp_path, monkeypatch):
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    with pytest.raises(ValueError, match="TF_CONFIG names a cluster"):
        continuous.run(experiment, config(tmp_path), {})


def test_an_event_handler_that_raises_in_the_other_thread_fails_the_run(tmp_path):
    def handle(event):
        if event["kind"] == "evaluation":
            raise LookupError("nowhere to put it")

    with pytest.raises(LookupError, match="nowhere to put it"):
        continuous.run(experiment, config(tmp_path), {}, on_event=handle)
    assert not multiprocessing.active_children()


def test_only_one_process_evaluates_into_a_folder(tmp_path):
    """The evaluator of a killed training may still be at its last checkpoint when the next one starts."""
    with (
        only_evaluator(str(tmp_path)),
        open(tmp_path / LOCK_FILE) as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with only_evaluator(str(tmp_path)):
        pass
