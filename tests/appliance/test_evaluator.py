"""The continuous evaluator: what it decides, and what it remembers of what it did."""

import os
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator.evaluation_policy import (
    AskExporters,
    Checkpoint,
    Evaluate,
    Stop,
    TrainingEnd,
    Wait,
    next_action,
)
from appliance.estimator.evaluation_record import Evaluation, Offer
from appliance.estimator.evaluator import Evaluator, catch_up, follow
from appliance.estimator.exporters import BestExporter, FinalExporter, LatestExporter
from appliance.estimator.specs import EvalSpec

AT_0, AT_10, AT_20 = (Checkpoint(f"m/model.ckpt-{step}", step, f"content {step}") for step in (0, 10, 20))
GOOD_END, BAD_END = TrainingEnd(final=True), TrainingEnd(final=False)


def evaluation_of(checkpoint, **offers):
    name = os.path.basename(checkpoint.path)
    return Evaluation(name, checkpoint.step, checkpoint.fingerprint, {}, offers)


def decide(newest, last=None, ended=None, exporters=(), min_steps_between=1, seconds_until_due=0.0):
    return next_action(
        newest,
        last,
        ended,
        exporters=exporters,
        min_steps_between=min_steps_between,
        seconds_until_due=seconds_until_due,
    )


def test_waits_for_a_checkpoint_and_stops_if_training_ends_without_one():
    assert isinstance(decide(None), Wait)
    assert decide(None, ended=BAD_END) == Stop()


def test_evaluates_the_newest_checkpoint_once():
    assert decide(AT_10) == Evaluate(AT_10, final=False)
    assert isinstance(decide(AT_10, evaluation_of(AT_10)), Wait)
    assert decide(AT_20, evaluation_of(AT_10)) == Evaluate(AT_20, final=False)


def test_a_checkpoint_written_again_with_other_content_is_evaluated_again():
    assert decide(replace(AT_10, fingerprint="other"), evaluation_of(AT_10)) == Evaluate(
        replace(AT_10, fingerprint="other"), final=False
    )


def test_an_untrained_model_is_evaluated_only_if_training_ends_with_it():
    assert isinstance(decide(AT_0), Wait)
    assert decide(AT_0, ended=GOOD_END) == Evaluate(AT_0, final=True)


def test_the_last_checkpoint_is_evaluated_whatever_delay_and_frequency_say():
    late = {"seconds_until_due": 60.0, "min_steps_between": 0}
    assert decide(AT_10, seconds_until_due=60.0) == Wait(60.0)
    assert isinstance(decide(AT_20, evaluation_of(AT_10), min_steps_between=11), Wait)
    assert decide(AT_20, evaluation_of(AT_10), GOOD_END, **late) == Evaluate(AT_20, final=True)
    assert decide(AT_20, evaluation_of(AT_10), BAD_END, **late) == Evaluate(AT_20, final=False)
    assert decide(AT_20, evaluation_of(AT_20), GOOD_END) == Stop()


def test_a_return_to_an_earlier_checkpoint_counts_steps_afresh():
    assert decide(AT_10, evaluation_of(AT_20), min_steps_between=10) == Evaluate(AT_10, final=False)


def test_exporters_are_asked_again_when_an_evaluated_checkpoint_proves_to_be_the_last():
    """Neither one that has exported this checkpoint already, nor any after a training that failed."""
    last = evaluation_of(AT_10, latest=Offer("path", final=False), final=Offer(None, final=False))
    names = ("latest", "final", "new")
    assert last.exports_due(names, final=False) == ["new"]
    assert last.exports_due(names, final=True) == ["final", "new"]
    assert decide(AT_10, last, exporters=names) == AskExporters(AT_10, final=False)
    assert decide(AT_10, last, BAD_END, exporters=names[:2]) == Stop()
    assert decide(AT_10, last, GOOD_END, exporters=names) == AskExporters(AT_10, final=True)
    asked = replace(last, offers={**last.offers, "final": Offer(None, final=True)})
    assert decide(AT_10, asked, GOOD_END, exporters=names[:2]) == Stop()


class Bowl:
    """An Estimator of one weight: real checkpoints, loss = weight ** 2, exports that are empty folders."""

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        self.evaluated = []
        self.meanwhile = lambda: None
        self._exports = 1_700_000_000

    def save(self, step, weight, keep=5):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.train.get_or_create_global_step()
            tf.compat.v1.get_variable("weight", initializer=0.0)
            saver = tf.compat.v1.train.Saver(max_to_keep=keep)
            saver.recover_last_checkpoints(self._known())
            for variable, value in zip(tf.compat.v1.global_variables(), (step, weight), strict=True):
                session.run(variable.assign(value))
            saver.save(session, os.path.join(self.model_dir, "model.ckpt"), global_step=step)

    def _known(self):
        state = tf.train.get_checkpoint_state(self.model_dir)
        return list(state.all_model_checkpoint_paths) if state else []

    def latest_checkpoint(self):
        return tf.train.latest_checkpoint(self.model_dir)

    def eval_dir(self, name=None):
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def evaluate(self, input_fn, steps, hooks, checkpoint_path, name):
        self.meanwhile()
        reader = tf.train.load_checkpoint(checkpoint_path)
        step = reader.get_tensor("global_step")
        self.evaluated.append(int(step))
        return {"loss": np.square(reader.get_tensor("weight")), "global_step": step}

    def export_saved_model(self, base, receiver_fn, assets_extra, as_text, checkpoint_path):
        tf.train.load_checkpoint(checkpoint_path)
        self._exports += 1
        os.makedirs(os.path.join(base, str(self._exports)))
        return os.path.join(base, str(self._exports)).encode()


def spec(*exporters):
    return EvalSpec(lambda: None, exporters=exporters)


def all_kinds():
    return spec(LatestExporter("latest", None), FinalExporter("final", None), BestExporter("best", None))


def test_a_checkpoint_deleted_by_training_in_the_middle_of_its_evaluation_is_evaluated_and_exported(tmp_path):
    estimator, events = Bowl(tmp_path), []
    estimator.save(10, weight=3.0)

    def train_on():
        estimator.meanwhile = lambda: None
        estimator.save(20, weight=2.0, keep=1)
        assert not os.path.exists(tmp_path / "model.ckpt-10.index")

    estimator.meanwhile = train_on
    evaluator = Evaluator(estimator, all_kinds(), events.append)
    catch_up(evaluator, None, max_steps=None)
    assert [(e["kind"], e["step"], e.get("name")) for e in events] == [
        ("evaluation", 10, None),
        ("export", 10, "latest"),
        ("export", 10, "best"),
        ("evaluation", 20, None),
        ("export", 20, "latest"),
        ("export", 20, "best"),
    ]
    assert [e["metrics"]["loss"] for e in events] == [9.0] * 3 + [4.0] * 3
    assert not list(tmp_path.glob("*pins*/*")), "a checkpoint is still pinned"


def test_a_new_evaluator_goes_on_where_the_last_one_was(tmp_path):
    """It repeats no evaluation, keeps the best result, and makes the final export that is still due."""
    estimator = Bowl(tmp_path)
    estimator.save(10, weight=1.0)
    catch_up(Evaluator(estimator, all_kinds()), None, max_steps=None)
    estimator.save(20, weight=2.0)
    catch_up(Evaluator(estimator, all_kinds()), None, max_steps=None)
    estimator.save(20, weight=2.0)  # A training that is taken up again saves the same once more.
    for _ in range(2):
        evaluator = Evaluator(estimator, all_kinds())
        catch_up(evaluator, GOOD_END, max_steps=None)
    assert estimator.evaluated == [10, 20]
    exports = [(e.name, e.step, e.metrics["loss"]) for e in evaluator.record.exports]
    assert exports == [("latest", 10, 1.0), ("best", 10, 1.0), ("latest", 20, 4.0), ("final", 20, 4.0)]
    assert [path and os.path.basename(path) for path in evaluator.last_exports] == [
        "1700000003",
        "1700000004",
        None,
    ]


def test_the_record_forgets_exports_that_are_gone_and_survives_a_move(tmp_path):
    estimator = Bowl(tmp_path / "model")
    evaluator = Evaluator(estimator, spec(LatestExporter("latest", None, exports_to_keep=2)))
    for step in (10, 20, 30):
        estimator.save(step, weight=1.0)
        catch_up(evaluator, None, max_steps=None)
    assert [export.step for export in evaluator.record.exports] == [20, 30]
    os.rename(tmp_path / "model", tmp_path / "moved")
    moved = Evaluator(Bowl(tmp_path / "moved"), spec(LatestExporter("latest", None)))
    assert [os.path.isdir(export.path) for export in moved.record.exports] == [True, True]
    assert moved.last_exports == [moved.record.exports[1].path]
    assert moved.last_exports[0].startswith(str(tmp_path / "moved" / "export" / "latest"))


def test_a_failed_export_is_made_up_for_without_a_second_evaluation(tmp_path):
    estimator = Bowl(tmp_path)
    estimator.save(10, weight=1.0)
    blocked = tmp_path / "export"
    blocked.write_text("a file where the folder should be")
    with pytest.raises(OSError, match="export"):
        catch_up(Evaluator(estimator, spec(LatestExporter("latest", None))), None, max_steps=None)
    blocked.unlink()
    evaluator = Evaluator(estimator, spec(LatestExporter("latest", None)))
    catch_up(evaluator, None, max_steps=None)
    assert [export.step for export in evaluator.record.exports] == [10]
    assert estimator.evaluated == [10]


def test_a_record_that_is_no_json_is_taken_for_none(tmp_path, caplog):
    estimator = Bowl(tmp_path)
    estimator.save(10, weight=1.0)
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "evaluated.json").write_text("{")
    catch_up(Evaluator(estimator, spec()), None, max_steps=None)
    assert estimator.evaluated == [10]
    assert "state_file_unreadable" in caplog.text


class Signals:
    """A training that saves a checkpoint each time the evaluator waits, and ends after the last."""

    def __init__(self, estimator, steps, end):
        self._estimator, self._steps, self._end = estimator, list(steps), end
        self.waits = []

    def ended(self):
        return self._end if not self._steps else None

    def wait(self, seconds):
        self.waits.append(seconds)
        self._estimator.save(step := self._steps.pop(0), weight=float(step))


@pytest.mark.parametrize(
    ("end", "max_steps"), [(GOOD_END, None), (GOOD_END, 30), (BAD_END, None), (None, 30)]
)
def test_follows_a_training_to_its_end_however_it_ends(tmp_path, end, max_steps):
    estimator = Bowl(tmp_path)
    evaluator = Evaluator(estimator, spec(FinalExporter("final", None)))
    follow(
        evaluator,
        Signals(estimator, [0, 10, 20, 30], end),
        max_steps=max_steps,
        start_delay_secs=0,
        throttle_secs=0,
    )
    assert estimator.evaluated == [10, 20, 30]
    assert [export.step for export in evaluator.record.exports] == ([] if end == BAD_END else [30])


def test_throttling_skips_checkpoints_but_the_last(tmp_path):
    estimator, signals = Bowl(tmp_path), None
    signals = Signals(estimator, [10, 20, 30, 40], GOOD_END)
    follow(Evaluator(estimator, spec()), signals, max_steps=None, start_delay_secs=0, throttle_secs=3600)
    assert estimator.evaluated == [10, 40]
    assert max(signals.waits) > 3500


def test_an_incomplete_checkpoint_is_an_error_that_names_it(tmp_path):
    estimator = Bowl(tmp_path)
    estimator.save(10, weight=1.0)
    for data in tmp_path.glob("model.ckpt-10.data-*"):
        data.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.ckpt-10"):
        catch_up(Evaluator(estimator, spec()), None, max_steps=None)
